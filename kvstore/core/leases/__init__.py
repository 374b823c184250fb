"""Leases and holds: the pages that a worker may use, and for how long."""
