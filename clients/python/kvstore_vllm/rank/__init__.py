"""The connector at a rank of vLLM."""
