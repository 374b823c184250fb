"""The settings of an operator."""

from collections.abc import Mapping

import pytest

from kvstore_vllm.engine.connector_settings import ConnectorSettings


def test_nothing_has_to_be_set() -> None:
    """Every setting has a default."""
    settings = ConnectorSettings.read({})
    assert settings == ConnectorSettings()
    assert settings.load_async is None
    assert settings.save_output
    assert settings.fault_load_fraction == 0


def test_what_is_set_is_read() -> None:
    """Each value has its own type, and a whole number of seconds is a valid time."""
    settings = ConnectorSettings.read(
        {
            "runtime_dir": "/run/kvstore",
            "lookup_timeout": 1,
            "scheduling_wait": 0,
            "load_async": False,
            "model_digest": "ab" * 32,
            "salt": "blue",
        }
    )
    assert settings.runtime_dir == "/run/kvstore"
    assert settings.lookup_timeout == 1.0
    assert settings.scheduling_wait == 0
    assert not settings.load_async
    assert settings.model_digest == "ab" * 32
    assert settings.salt == "blue"


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"lookup_timout": 1}, "lookup_timout.*it knows.*lookup_timeout"),
        ({"lookup_timeout": "1"}, "lookup_timeout.*float"),
        ({"lookup_timeout": True}, "lookup_timeout.*float"),
        ({"lookup_timeout": 0}, "lookup_timeout"),
        ({"lookup_timeout": float("nan")}, "lookup_timeout"),
        ({"scheduling_wait": 0.2}, "scheduling_wait.*0.1"),
        ({"scheduling_wait": -0.001}, "scheduling_wait"),
        ({"load_async": 1}, "load_async.*bool"),
        ({"runtime_dir": 3}, "runtime_dir"),
        ({"fault_load_fraction": 1.5}, "fault_load_fraction"),
        ({"model_digest": "Qwen/Qwen3-0.6B"}, "model_digest.*sha256sum"),
        ({"model_digest": "ab" * 8}, "model_digest"),
        ({"model_digest": "ab" * 65}, "model_digest"),
        ({"display_name": "x" * 257}, "display_name"),
        ({"kv_cache_layout": "NHD"}, "kv_cache_layout.*BLNHC"),
    ],
)
def test_what_is_no_setting_is_named(extra: Mapping[str, object], named: str) -> None:
    """An unknown key and an invalid value are refused by name."""
    with pytest.raises(ValueError, match=named):
        ConnectorSettings.read(extra)


@pytest.mark.parametrize(
    ("extra", "on_gpu", "on_cpu"),
    [({}, True, False), ({"load_async": True}, True, True), ({"load_async": False}, False, False)],
)
def test_loads_run_beside_the_steps_of_a_gpu(
    extra: Mapping[str, object],
    on_gpu: bool,  # noqa: FBT001
    on_cpu: bool,  # noqa: FBT001
) -> None:
    """Without the setting a load runs beside steps, unless both need the same cores."""
    settings = ConnectorSettings.read(extra)
    assert settings.loads_beside_steps("cuda") == on_gpu
    assert settings.loads_beside_steps("cpu") == on_cpu


@pytest.mark.parametrize(
    ("extra", "on_gpu", "on_cpu"),
    [
        ({}, "BLNHC", None),
        ({"kv_cache_layout": "none"}, None, None),
        ({"kv_cache_layout": "BLHNC"}, "BLHNC", "BLHNC"),
    ],
)
def test_a_gpu_is_asked_for_blocks_first(
    extra: Mapping[str, object], on_gpu: str | None, on_cpu: str | None
) -> None:
    """Without the setting a GPU's blocks come first, and a CPU's lie as vLLM likes."""
    settings = ConnectorSettings.read(extra)
    assert settings.wanted_layout("cuda") == on_gpu
    assert settings.wanted_layout("cpu") == on_cpu
