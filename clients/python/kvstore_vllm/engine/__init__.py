"""The engine that the connector runs in: its facts, types, settings and store."""
