"""Routers in an environment of their own, and the network between them and a store."""
