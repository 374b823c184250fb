"""Stores in the process of a test."""
