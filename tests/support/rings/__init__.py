"""The journal's memory under test: recorded writes, cut anywhere, and a writer to kill."""
