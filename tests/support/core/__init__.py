"""Builders of core objects for unit tests."""
