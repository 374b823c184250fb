"""Fuzzing: random messages and bytes against every entrance of a server."""
