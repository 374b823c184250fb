"""Engines in processes of their own, for those that keep no deadline or can crash."""
