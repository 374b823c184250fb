"""The engine: requests, scheduling, batches and sampling."""
