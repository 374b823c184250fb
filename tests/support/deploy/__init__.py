"""Readers of deploy/ and its formats."""
