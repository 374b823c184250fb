"""Blocks of vLLM as pages of the store."""
