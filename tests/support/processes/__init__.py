"""Processes that tests start and control."""
