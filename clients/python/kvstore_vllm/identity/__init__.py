"""The identity of an engine's KV: everything that its values depend on."""
