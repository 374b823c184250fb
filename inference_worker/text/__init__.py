"""Text from tokens."""
