"""Values that calls and answers name: tokens, layouts, places of pages, and namespaces."""
