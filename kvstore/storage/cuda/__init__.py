"""Memory of CUDA devices, and copies between it and host memory."""
