"""Readers of docs: snippets, and pages in a browser."""
