"""Conversion between messages and the types of the core."""
