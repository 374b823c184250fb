"""The parts of journaling.py: memory for a journal, an engine's calls, and recoveries."""
