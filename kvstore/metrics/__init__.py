"""What a store counts, as Prometheus reads it."""
