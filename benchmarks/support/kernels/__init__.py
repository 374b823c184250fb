"""Parts of benchmarks/gpu_kernels.py."""
