"""Stand-ins for vLLM."""
