"""Where what was built or read on this machine is kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Says where the cache is: ``$KVSTORE_CACHE``, else in ``$XDG_CACHE_HOME``, else ``~/.cache``.

    Creates nothing.
    """
    named = os.environ.get("KVSTORE_CACHE")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "kvstore"
