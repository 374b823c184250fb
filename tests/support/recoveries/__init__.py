"""A cache with a journal that remembers every write, and recoveries from each of them."""
