"""A cache that outlives its server: what one process leaves, and what the next one takes over."""
