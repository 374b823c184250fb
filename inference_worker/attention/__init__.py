"""Attention on pages."""
