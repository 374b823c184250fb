"""Model folders that are built once on this machine."""

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from kvstore_transformers.cache_folder import cache_folder


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Returns the cached folder ``name``; if it is missing, ``build`` fills an empty folder first.

    The folder appears complete or not at all. If several processes need it, one builds and the
    others wait. Raises the error of ``build``, and keeps nothing then.
    """
    root = cache_folder()
    folder = root / name
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{name}.lock"):
        if not folder.is_dir():
            # A builder that was killed may have left its unfinished folder.
            unfinished = root / f".{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                build(unfinished)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder
