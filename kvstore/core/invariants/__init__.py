"""Invariants: one sentence each, checked from scratch. For tests and for debugging."""
