"""Pages between memory and disk: decides what to copy, and never copies."""
