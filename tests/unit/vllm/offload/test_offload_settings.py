"""The settings of an engine with vLLM's OffloadingConnector."""

import pytest

from kvstore_vllm.offload.offload_settings import OffloadSettings


def test_settings_are_those_of_both_connectors_and_of_vllm() -> None:
    """Shared settings are read; the keys that vLLM reads itself are left to it."""
    extra = {"runtime_dir": "/run/kvstore", "kv_cache_layout": "BLNHC", "spec_name": "a spec"}
    settings = OffloadSettings.read(extra | {"blocks_per_chunk": 2, "canonical_layout": True})
    assert settings.connector.runtime_dir == "/run/kvstore"
    assert settings.kv_cache_layout == "BLNHC"
    assert settings.canonical_layout
    assert not OffloadSettings.read(extra).canonical_layout


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"cpu_bytes_to_use": 1 << 30}, "cpu_bytes_to_use"),
        ({"load_async": 1}, "load_async"),
        ({"kv_cache_layout": 1}, "kv_cache_layout"),
        ({"kv_cache_layout": "auto"}, "kv_cache_layout.*LBHNC"),
        ({"kv_cache_layout": "none"}, "kv_cache_layout.*LBHNC"),
        ({"canonical_layout": "no"}, "canonical_layout"),
        ({"lookup_timeout": 0.0}, "lookup_timeout"),
    ],
)
def test_other_settings_are_refused(extra: dict[str, object], named: str) -> None:
    """A setting that is unknown, meaningless or invalid is named."""
    with pytest.raises(ValueError, match=named):
        OffloadSettings.read(extra)


@pytest.mark.parametrize(
    ("load_async", "device", "groups", "within"),
    [
        (None, "cpu", 1, True),
        (None, "cpu", 2, False),
        (None, "cuda", 1, False),
        (False, "cpu", 1, True),
        (True, "cpu", 1, False),
    ],
)
def test_loads_are_within_a_step_on_a_cpu(
    load_async: bool | None,  # noqa: FBT001
    device: str,
    groups: int,
    within: bool,  # noqa: FBT001
) -> None:
    """A step loads by default on a CPU, where vLLM can compute the blocks of a failed load."""
    settings = OffloadSettings.read({} if load_async is None else {"load_async": load_async})
    assert settings.loads_in_step(device, groups) is within


@pytest.mark.parametrize(("device", "groups"), [("cpu", 2), ("cuda", 1)])
def test_loads_within_a_step_are_refused_where_they_cannot_be(device: str, groups: int) -> None:
    """An operator who asks for them there is told so."""
    with pytest.raises(ValueError, match="load_async is false"):
        OffloadSettings.read({"load_async": False}).loads_in_step(device, groups)
