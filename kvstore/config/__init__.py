"""The settings of a server: their values, sources, help and display."""
