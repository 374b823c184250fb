"""Pages of sequences: matched, reserved, grown and published."""
