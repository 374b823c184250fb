"""The store of a serving process: its own, or one that already runs."""
