"""The verbs of the cache: what callers ask of it."""
