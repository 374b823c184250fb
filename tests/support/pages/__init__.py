"""Pages whose bytes say which tokens they are of."""
