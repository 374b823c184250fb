"""Recovery: a cache made from what the store before it wrote down."""
