"""Eviction: policies nominate victims, and the cache executes."""
