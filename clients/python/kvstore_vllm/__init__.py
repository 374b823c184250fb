"""vLLM on the store: ``kv_connector_module_path: "kvstore_vllm"`` names the connectors.

Importing this package loads neither vLLM nor torch; asking it for a connector does.
"""

from importlib import import_module
from typing import Any

from kvstore_vllm.versions import VERSIONS

# The classes that vLLM's configuration names, and their modules.
CLASSES = {
    "KvstoreConnector": "kvstore_vllm.connector",
    "KvstoreOffloadingConnector": "kvstore_vllm.offload.offload_connector",
    "KvstoreOffloadingSpec": "kvstore_vllm.offload.offload_spec",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attribute is of any type
    """Loads a connector at its first use; raises ``AttributeError`` for other names.

    Raises ``ImportError`` for a version of vLLM that it was not tested with.
    """
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Before vLLM's parts are imported, which are elsewhere in other versions.
    VERSIONS.require(import_module("vllm.version").__version__)
    return getattr(import_module(CLASSES[name]), name)
