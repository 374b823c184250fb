"""Tenants: who they are, by which credentials, and how much they may ask for."""
