"""kvstore: a service that holds the prefix KV cache of a host's inference workers."""

__version__ = "0.1.0"
