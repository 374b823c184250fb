"""What calls and answers name: tokens, layouts, pages by their places, and namespaces."""
