"""Where bytes are: extents, each one allocation with a handle of its own."""
