"""Memory of CUDA devices, mapped through IPC handles."""
