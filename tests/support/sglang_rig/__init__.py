"""Stand-ins of SGLang's parts, for tests that have no SGLang."""
