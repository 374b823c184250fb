"""The protocol, generated from proto/kvstore/v1 by proto/generate.py: do not edit."""
