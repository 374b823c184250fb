"""Revisions of namespaces: what this host knows of removals, its own and those of others."""
