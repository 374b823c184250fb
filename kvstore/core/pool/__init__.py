"""A tenant's memory and its namespaces, and what other tiers have to learn of them."""
