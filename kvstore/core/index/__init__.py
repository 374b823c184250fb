"""The tree of cached pages of one namespace: its structure, without leases or slots."""
