"""Pages on their way between SGLang's device pool and the store."""
