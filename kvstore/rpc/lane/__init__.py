"""Lanes: connections of the attach socket that carry calls of the request path."""
