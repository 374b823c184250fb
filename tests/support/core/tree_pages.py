"""The pages of the tree, for tests of what they say."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]


def pages() -> list[Path]:
    """Returns the pages of the tree: not those of the environment and of caches.

    What is hidden is not looked into, and a folder that goes meanwhile is none: programs that
    run beside the tests make and remove some in their caches.
    """
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += (Path(folder, name) for name in names if Path(name).suffix == ".md")
    return sorted(found)
