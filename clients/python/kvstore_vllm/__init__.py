"""vLLM on the store: ``kv_connector_module_path: "kvstore_vllm"`` names the connector.

Importing this package loads neither vLLM nor torch; asking it for ``KvstoreConnector`` does.
"""

from importlib import import_module
from typing import Any

from kvstore_vllm.versions import require_supported

CONNECTOR = "KvstoreConnector"


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attribute is of any type
    """Loads the connector at its first use; raises ``AttributeError`` for other names.

    Raises ``ImportError`` for a version of vLLM that it was not tested with.
    """
    if name != CONNECTOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Before vLLM's parts are imported, which are elsewhere in other versions.
    require_supported(import_module("vllm.version").__version__)
    return getattr(import_module("kvstore_vllm.connector"), CONNECTOR)
