"""Engines for tests, with and without models."""
