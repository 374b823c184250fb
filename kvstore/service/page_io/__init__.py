"""Moves between tiers, disk writes and disk reads, carried out by threads."""
