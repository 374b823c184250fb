"""The tree of cached pages of one namespace: its structure, and nothing of leases or slots."""
