"""Chaos: a store under load whose workers and server are killed, stopped and cut off."""
