"""Names, seals, keys and revisions that hosts make of the secret that they share."""
