"""The slab: pages on disk in one preallocated file."""
