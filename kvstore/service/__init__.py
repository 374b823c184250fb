"""The effects around the core: one owner, one lock, one clock, and the threads that tick."""
