"""The engines that the linker refuses, each with one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

# The store's hashes of partial pages cost more than short pages save, and copies of few bytes are
# slow: docs/how-to-sglang.md.
LEAST_PAGE_TOKENS: Final = 8
# Methods of drafting that keep no KV, and none.
DRAFTS_WITHOUT_KV: Final = frozenset({"", "NGRAM"})
# SGLang's names of the components of a cache that the store keeps.
COMPONENTS: Final = (frozenset({"FULL"}), frozenset({"FULL", "SWA"}))
# Those that it keeps too, tested on a CPU and not on a GPU.
UNPROVEN: Final = frozenset({"FULL", "MAMBA"})
# Settings that keep recurrent states in a form that no test has seen, and their flags.
STATE_SETTINGS: Final[Mapping[str, str]] = {
    "exec.mamba.enable_linear_replayssm": "--enable-linear-replayssm",
    "exec.mamba.enable_linear_replayssm_spec": "--enable-linear-replayssm-spec",
    "memory.enable_unified_memory": "--enable-unified-memory",
}


class UnsupportedEngine(ValueError):
    """The linker does not support this engine; the message names the setting to change."""


def require_supported(
    settings: Mapping[str, Any],
    params: Any,  # noqa: ANN401  # a CacheInitParams
    components: Any,  # noqa: ANN401  # a set of ComponentType
    *,
    try_recurrent_state: bool = False,
) -> None:
    """Raises ``UnsupportedEngine`` for an engine whose pages the store would get wrong.

    ``settings`` are SGLang's resolved ones, by namespace and field. Recurrent states are refused
    unless ``try_recurrent_state`` is set.
    """
    page_tokens = int(params.page_size)
    if page_tokens < LEAST_PAGE_TOKENS:
        raise UnsupportedEngine(
            f"--page-size is {page_tokens}: set at least {LEAST_PAGE_TOKENS}, best 64 on a GPU"
        )
    for name in ("pp_size", "attn_cp_size", "dcp_size"):
        size = settings.get(f"parallel.{name}") or 1
        if size > 1:
            raise UnsupportedEngine(
                f"--{name.replace('_', '-')} is {size}, and a page of the store has all layers and "
                "tokens of one rank: set it to 1"
            )
    if settings.get("parallel.enable_kv_cache_sharding"):
        raise UnsupportedEngine(
            "--enable-kv-cache-sharding spreads a page over ranks, and a page of the store has all "
            "of one rank: leave it out"
        )
    algorithm = str(settings.get("spec.speculative_algorithm") or "")
    if algorithm not in DRAFTS_WITHOUT_KV or params.is_eagle:
        raise UnsupportedEngine(
            f"--speculative-algorithm is {algorithm}, whose draft keeps KV that no page has, or "
            "whose keys are pairs of tokens: leave it out, or set NGRAM"
        )
    _require_components(settings, component_names(components), try_recurrent_state)


def _require_components(
    settings: Mapping[str, Any],
    names: Sequence[str],
    try_recurrent_state: bool,  # noqa: FBT001  # as above
) -> None:
    if frozenset(names) == UNPROVEN and not try_recurrent_state:
        raise UnsupportedEngine(
            "the model's cache has recurrent states, and no test with SGLang has proven that they "
            "give the same tokens yet: start this model without "
            '--enable-unified-cache-external-linker, or set "try_recurrent_state": true in '
            "linker_extra_config and compare answers"
        )
    if frozenset(names) not in (*COMPONENTS, UNPROVEN):
        raise UnsupportedEngine(
            f"the model's cache has the components {', '.join(names)}, and KvstoreLinker takes "
            "full attention, alone or with sliding windows: start this model without "
            "--enable-unified-cache-external-linker"
        )
    if len(names) > 1:
        for name, flag in STATE_SETTINGS.items():
            if settings.get(name):
                raise UnsupportedEngine(
                    f"{flag} keeps windows or states of this model in another way than pages of "
                    "the store do: leave it out"
                )


def component_names(components: Any) -> list[str]:  # noqa: ANN401  # a set of ComponentType
    """Returns SGLang's names of components, sorted."""
    return sorted(str(getattr(each, "name", each)) for each in components)
