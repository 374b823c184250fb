"""Chats with a model."""
