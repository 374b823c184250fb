"""The engine on Valkey or Redis."""
