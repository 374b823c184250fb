"""Parts of SGLang in memory, for tests without SGLang."""
