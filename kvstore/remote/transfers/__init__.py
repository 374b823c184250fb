"""Pages on their way to an engine and back: looks, reads, writes and expiry."""
