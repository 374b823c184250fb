"""The demo, the reference worker and experiments."""
