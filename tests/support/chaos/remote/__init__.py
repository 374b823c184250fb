"""The engine that several hosts of a chaos run share, its faults, and those who check it."""
