"""Slabs for tests."""
