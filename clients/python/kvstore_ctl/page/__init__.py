"""The web page of a store: read-only, on loopback, fed by the public RPCs."""
