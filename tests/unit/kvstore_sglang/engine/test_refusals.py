"""The engines that the linker refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore_sglang.engine.refusals import UnsupportedEngine, require_supported


def engine(**changes: object) -> tuple[dict[str, object], Any, Any]:
    """Returns the arguments of a supported engine with some fields changed."""
    settings = {"parallel.pp_size": 1, "spec.speculative_algorithm": None}
    params = {"page_size": 16, "is_eagle": False}
    kinds = changes.pop("components", ("FULL",))
    assert isinstance(kinds, tuple)
    for name, value in changes.items():
        if name in params:
            params[name] = value  # type: ignore[assignment]
        else:
            settings[name.replace("__", ".")] = value  # type: ignore[assignment]
    return settings, SimpleNamespace(**params), [SimpleNamespace(name=kind) for kind in kinds]


@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_plain_engines_are_accepted(page_size: int) -> None:
    """Full attention with pages of eight tokens and more is supported, and drafts without KV."""
    require_supported(*engine(page_size=page_size))
    require_supported(*engine(page_size=page_size, spec__speculative_algorithm="NGRAM"))
    require_supported(*engine(page_size=page_size, components=("SWA", "FULL")))
    states = engine(page_size=page_size, components=("MAMBA", "FULL"))
    require_supported(*states, try_recurrent_state=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 1}, "--page-size is 1: set at least 8"),
        ({"page_size": 4}, "--page-size is 4: set at least 8"),
        ({"parallel__pp_size": 2}, "--pp-size is 2.*set it to 1"),
        ({"parallel__attn_cp_size": 2}, "--attn-cp-size is 2.*set it to 1"),
        ({"parallel__dcp_size": 4}, "--dcp-size is 4.*set it to 1"),
        ({"parallel__enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding.*leave it out"),
        ({"spec__speculative_algorithm": "EAGLE"}, "algorithm is EAGLE, whose draft keeps KV"),
        ({"spec__speculative_algorithm": "STANDALONE"}, "STANDALONE.*or set NGRAM"),
        ({"is_eagle": True}, "whose keys are pairs of tokens"),
        ({"components": ("FULL", "C128")}, "the components C128, FULL.*with sliding windows"),
        ({"components": ("FULL", "SWA", "MAMBA")}, "the components FULL, MAMBA, SWA"),
        ({"components": ("SWA",)}, "the components SWA"),
        ({"components": ("FULL", "MAMBA")}, "recurrent states.*try_recurrent_state.: true"),
        (
            {"components": ("FULL", "SWA"), "exec.mamba__enable_linear_replayssm": True},
            "--enable-linear-replayssm keeps.*leave it out",
        ),
        (
            {"components": ("FULL", "SWA"), "memory__enable_unified_memory": True},
            "--enable-unified-memory keeps.*leave it out",
        ),
    ],
)
def test_a_refusal_is_one_sentence_that_names_the_setting(
    changes: dict[str, object], message: str
) -> None:
    """Each engine that pages cannot serve is refused at its start."""
    with pytest.raises(UnsupportedEngine, match=message):
        require_supported(*engine(**changes))
