"""SGLang's plugin: the hooks that give the linker tokens, and tell it of new weights.

The entry point ``sglang.srt.plugins`` names :func:`install`, which every process of SGLang calls.
The linker calls it too, so that a tree on ``PYTHONPATH`` works without an installed package.
"""

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from kvstore_sglang.hicache import prefix_keys
from kvstore_sglang.versions import VERSIONS

_logger = logging.getLogger(__name__)

CACHE_LINKED: Final = (
    "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper.__init__"
)
WEIGHTS: Final = (
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
)
# Methods that write weights: all begin to do so after they are called.
WEIGHT_METHODS: Final = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "begin_weight_update",
    "end_weight_update",
)
# Modules whose engines hear of new weights, if they are loaded.
TOLD_OF_WEIGHTS: Final = ("kvstore_sglang.linker", "kvstore_sglang.hicache.storage")
_installed: set[str] = set()


class HooksMissing(RuntimeError):
    """SGLang did not apply the plugin's hooks; the message says which one."""


def install() -> None:
    """Registers the hooks once, in a process that may have a linker. Loads no linker.

    Registers none in a version of SGLang that it was not tested with: most engines have no linker
    of ours, and one that has is refused as SGLang loads it.
    """
    try:
        VERSIONS.require(import_module("sglang.version").__version__)
    except ImportError as error:
        _logger.debug("hooks_not_registered", extra={"reason": str(error)})
        return
    registry: Any = import_module("sglang.srt.plugins.hook_registry")
    for target, hook in _hooks().items():
        if target not in _installed:
            _installed.add(target)
            registry.HookRegistry.register(target, hook, registry.HookType.AROUND)


def require_installed() -> None:
    """Installs the hooks if no plugin did, and checks them and SGLang's signatures.

    Raises ``HooksMissing`` if SGLang did not apply a hook, and ``ChangedInterface`` if a method
    that the wrapper stands on has other arguments than expected.
    """
    import_module("kvstore_sglang.token_keys").require_signatures()
    install()
    registry: Any = import_module("sglang.srt.plugins.hook_registry")
    registry.HookRegistry.apply_hooks()
    for target in _hooks():
        module, name, method = target.rsplit(".", 2)
        found = getattr(getattr(import_module(module), name), method, None)
        if not hasattr(found, "__wrapped__"):
            raise HooksMissing(
                f"SGLang has not applied the hook of {target}: its log says why, and "
                "SGLANG_PLUGINS must name kvstore if it is set"
            )


def _hooks() -> dict[str, Callable[..., Any]]:
    weights = dict.fromkeys((f"{WEIGHTS}.{name}" for name in WEIGHT_METHODS), _note_weights)
    return {CACHE_LINKED: _link, prefix_keys.TARGET: prefix_keys.with_last_node, **weights}


def _link(original: Callable[..., Any], wrapper: Any, cache: Any, cache_linker: Any) -> None:  # noqa: ANN401  # SGLang's own
    """Makes SGLang's wrapper of a cache ask our linker by tokens, and any other as before."""
    original(wrapper, cache, cache_linker)
    linker_class: type = import_module("kvstore_sglang.linker").KvstoreLinker
    if isinstance(cache_linker, linker_class):
        import_module("kvstore_sglang.token_keys").TokenKeys(wrapper).attach()


def _note_weights(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as SGLang's
    """Tells the linkers and storages of this process that weights change, then changes them."""
    for name in TOLD_OF_WEIGHTS:
        if (module := sys.modules.get(name)) is not None:
            module.weights_changed()
    return original(*args, **kwargs)
