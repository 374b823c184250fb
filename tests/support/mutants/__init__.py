"""Faults put into the code on purpose, which tests must find."""
