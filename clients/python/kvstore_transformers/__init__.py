"""``model.generate`` of transformers, starting from the cached prefix of a prompt.

Importing this package loads no client of a store. The first use of one of its names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvstore_transformers.errors import UnsupportedModelError
    from kvstore_transformers.prefix_cache import PrefixCache
    from kvstore_transformers.prefix_store import PrefixStore
    from kvstore_transformers.prompt import Prompt
    from kvstore_transformers.prompt_counts import PromptCounts

__all__ = ["PrefixCache", "PrefixStore", "Prompt", "PromptCounts", "UnsupportedModelError"]

_HOMES: Final = {
    "PrefixCache": "prefix_cache",
    "PrefixStore": "prefix_store",
    "Prompt": "prompt",
    "PromptCounts": "prompt_counts",
    "UnsupportedModelError": "errors",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attribute is of any type
    """Loads a name at its first use; raises ``AttributeError`` for an unknown one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
