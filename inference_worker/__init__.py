"""The reference engine: a transformers model whose keys and values live in kvstore's pages."""
