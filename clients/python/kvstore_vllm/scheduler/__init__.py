"""The connector in the scheduler of vLLM."""
