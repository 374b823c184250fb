"""One session with a store: attached, under one lease, kept alive and given up."""
