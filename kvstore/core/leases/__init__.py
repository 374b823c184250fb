"""Leases and holds: who may use which pages, and until when."""
