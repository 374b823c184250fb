"""Host memory that workers map, and the limits of this machine."""
