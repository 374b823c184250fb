"""Pages of sequences: their memory, and their acquisition from the store."""
