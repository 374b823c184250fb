"""SGLang's HiCache on the store: ``module_path: "kvstore_sglang.hicache"`` names the class.

Importing this package loads neither SGLang nor torch; asking it for the class does.
"""

from importlib import import_module
from typing import Any

CLASSES = {"KvstoreHiCache": "kvstore_sglang.hicache.storage"}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attribute is of any type
    """Loads the class at its first use; raises ``AttributeError`` for other names."""
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(CLASSES[name]), name)
