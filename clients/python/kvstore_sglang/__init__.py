"""SGLang on the store: ``"linker_module_path": "kvstore_sglang"`` names the linker.

Importing this package loads neither SGLang nor torch; asking it for the linker does.
"""

from importlib import import_module
from typing import Any

from kvstore_sglang.versions import VERSIONS

# The classes that SGLang's configuration names, and their modules.
CLASSES = {"KvstoreLinker": "kvstore_sglang.linker"}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attribute is of any type
    """Loads a class at its first use; raises ``AttributeError`` for other names.

    Raises ``ImportError`` for a version of SGLang that it was not tested with.
    """
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Before SGLang's parts are imported, which are elsewhere in other versions.
    VERSIONS.require(import_module("sglang.version").__version__)
    return getattr(import_module(CLASSES[name]), name)
