"""Consumers of KV events, for tests."""
