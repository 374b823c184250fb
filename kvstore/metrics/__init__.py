"""The store's metrics, for Prometheus."""
