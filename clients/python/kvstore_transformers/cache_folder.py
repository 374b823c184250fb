"""The folder for files that this machine built or computed and can reuse."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns ``$KVSTORE_CACHE``, else ``$XDG_CACHE_HOME/kvstore``, else ``~/.cache/kvstore``.

    Does not create the folder.
    """
    named = os.environ.get("KVSTORE_CACHE")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "kvstore"
