"""The cases with real vLLM, a file for each set of engines that cases share."""
