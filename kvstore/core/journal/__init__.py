"""The journal: what a store writes down of its cache, so that its successor finds it again."""
