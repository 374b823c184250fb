"""The factors that separate namespaces, as far as the store reports them."""

from typing import Any

import pytest

from kvstore.v1 import store_pb2
from kvstore_ctl.commands.namespace_identity import MEANINGS, differing, factors_of, namesakes

PAGED = {"layer_count": 2, "kv_head_count": 4, "head_dim": 8, "dtype": "float32"}


def space(number: int, **fields: Any) -> store_pb2.NamespaceInfo:  # noqa: ANN401  # any field
    """Returns a namespace of the model "m", of which ``fields`` change any part."""
    made = store_pb2.NamespaceInfo(
        namespace_id=bytes([number]) * 16,
        tenant="t",
        identity={"model_digest": b"m", "display_name": "gemma"},
        layout={"page_tokens": 16, "page_bytes": 4096, "paged": PAGED},
    )
    for name, value in fields.items():
        for part in (made, made.identity, made.layout):
            if name in part.DESCRIPTOR.fields_by_name:
                setattr(part, name, value)
                break
    return made


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"tenant": "u"}, "tenant"),
        ({"model_digest": b"n"}, "model"),
        ({"adapter_digest": b"a"}, "adapter"),
        ({"tensor_parallel_size": 2}, "ranks"),
        ({"page_tokens": 32}, "page tokens"),
        ({"page_bytes": 8192}, "page bytes"),
        ({}, "salt"),
    ],
)
def test_each_factor_is_told(fields: dict[str, Any], factor: str) -> None:
    """A factor that differs is named with advice. The salt is named if no other one differs."""
    assert differing(space(1), space(2, **fields)) == [factor]
    assert factor in MEANINGS


def test_the_content_of_pages_is_a_factor() -> None:
    """Another dtype and an engine's own layout are factors."""
    other, opaque = space(2), space(3)
    other.layout.paged.dtype = "bfloat16"
    opaque.layout.opaque.fingerprint = b"\xab"
    assert differing(space(1), other) == ["content"]
    assert differing(space(1), opaque) == ["content"]
    assert factors_of(opaque)["content"] == "opaque ab"
    assert factors_of(space(1))["content"] == "2 layers, 4 heads of 8, float32, 2 to a token"
    assert list(MEANINGS) == [*factors_of(opaque), "salt"]


def test_namesakes_share_a_name_and_no_page() -> None:
    """One model's name with other weights or another dtype is reported as a likely mistake."""
    spaces = [space(1), space(2, model_digest=b"n"), space(3, page_bytes=1)]
    found = [(a.namespace_id[0], b.namespace_id[0], factors) for a, b, factors in namesakes(spaces)]
    assert found == [(3, 2, ["model", "page bytes"]), (3, 1, ["page bytes"]), (2, 1, ["model"])]


@pytest.mark.parametrize(
    "fields",
    [{}, {"adapter_digest": b"a"}, {"tenant": "u", "model_digest": b"n"}, {"display_name": "o"}],
)
def test_what_is_meant_to_be_apart_is_no_mistake(fields: dict[str, Any]) -> None:
    """Salts, adapters, tenants and names separate on purpose; unnamed ones are no namesakes."""
    assert namesakes([space(1), space(2, **fields)]) == []
    nameless = {"display_name": "", "model_digest": b"n"}
    assert namesakes([space(1, display_name=""), space(2, **nameless)]) == []


def test_a_thousand_salts_are_one_kind() -> None:
    """Namespaces that differ by salt alone are compared once."""
    spaces = [space(1) for _ in range(1000)] + [space(2, model_digest=b"n")]
    assert len(namesakes(spaces)) == 1
