"""A tier that hosts share: names, seals and engines of others. No server uses it yet."""
