"""Scripted peers of sockets and calls."""
