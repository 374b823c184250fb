"""The parts of the composition root: what builds each part of the store, by the settings."""
