"""Engines and pages for tests of the remote tier."""
