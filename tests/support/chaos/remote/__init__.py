"""What a chaos run of several hosts has beside: the engine that they share, and its faults."""
