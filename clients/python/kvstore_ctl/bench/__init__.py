"""Synthetic load against a running store."""
