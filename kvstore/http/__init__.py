"""The HTTP listener for what people and Prometheus look at: bounded, read-only, off by default."""
