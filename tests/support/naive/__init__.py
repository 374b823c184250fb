"""Naive models, each easy to check by reading."""
