"""The demo, its reference worker, and experiments."""
