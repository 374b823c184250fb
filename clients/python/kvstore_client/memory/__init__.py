"""Memory of the store, mapped into this process."""
