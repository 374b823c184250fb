"""Peers that ours is measured beside, each in an environment and in processes of its own."""
