"""The holder: a process that owns a store's descriptors, so that its memory outlives the server."""
