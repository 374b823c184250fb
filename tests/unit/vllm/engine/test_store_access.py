"""One engine's use of a store: its name, and what it states about itself."""

from pathlib import Path

import pytest

from kvstore_client import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore_client.engines.store_access import StoreAccess
from kvstore_vllm.engine.store_access import lease_name

DRAWN = "0b0e7a3c-5a0e-4d53-9a05-4f7a3a0c2f11"


@pytest.mark.parametrize(
    ("engine_id", "name"),
    [
        (DRAWN, "vllm tiny"),
        (f"{DRAWN}_dp1", "vllm tiny dp1"),
        ("blue", "vllm tiny blue"),
        ("blue_dp0", "vllm tiny blue dp0"),
        ("blue_dpx_dp3", "vllm tiny blue_dpx dp3"),
        ("blue_dp", "vllm tiny blue_dp"),
        ("my_dpot", "vllm tiny my_dpot"),
    ],
)
def test_an_engine_s_lease_says_which_it_is(engine_id: str, name: str) -> None:
    """A lease's name has the operator's id and the rank, but no id that changes at a restart."""
    assert lease_name("tiny", engine_id) == name


def test_a_long_name_is_cut() -> None:
    """A long name is cut to the store's limit in whole characters, and keeps the engine's id."""
    for model, engine_id in (("é" * 128, "blue_dp1"), ("m" * 300, "b" * 300), ("", "x" * 300)):
        name = lease_name(model, engine_id)
        assert 100 < len(name.encode()) <= 256
    assert lease_name("é" * 128, "blue_dp1").endswith("é blue dp1")
    assert lease_name("", DRAWN) == "vllm"


def test_a_stated_speed_is_that_of_every_namespace(tmp_path: Path) -> None:
    """Open namespaces have it, and those of later salts."""
    identity = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
    layout = PageLayout(4, 4096, OpaqueContent(b"rows"))
    access = StoreAccess(str(tmp_path), identity, layout, name="vllm tiny", call_timeout=1.0)
    early = access.namespace(b"early")
    access.state_speed(7.0)
    namespaces = [early, access.memory, access.namespace(b"late"), access.namespace(b"early")]
    assert [each.prefill_tokens_per_second for each in namespaces] == [7.0] * 4
    access.close()
