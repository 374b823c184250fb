"""Pages that this process holds: matched ones, and reserved ones that it may write."""
