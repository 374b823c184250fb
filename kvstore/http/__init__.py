"""The HTTP listener for people and Prometheus: bounded, read-only, off by default."""
