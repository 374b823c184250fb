"""Commands of ``kvstore-worker``."""
