"""A store and its clients in one thread, under simulated time and a seeded scheduler."""
