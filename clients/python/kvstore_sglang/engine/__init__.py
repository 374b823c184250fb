"""An engine of SGLang: its settings, its memory, its identity, and the engines refused."""
