"""vLLM's own OffloadingConnector, with the store in the place of its memory on the host."""
