"""CUDA devices and stand-ins for them."""
