"""The web page of a store: what people look at in a browser, read-only and on loopback alone."""
