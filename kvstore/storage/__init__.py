"""Memory and disk of pages: extents, each one allocation with its own handle, and the slab."""
