"""KV events as vLLM publishes them, for routers that follow which blocks the store has."""
