"""The effects around the core: one owner, one mutex, one clock, and the ticking threads."""
