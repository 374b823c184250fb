"""The engine: requests, scheduling, steps and sampling."""
