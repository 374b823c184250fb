"""KV events in the bytes of vLLM's publisher."""

from array import array
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from core.core_builders import make_namespace
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.change_log import NO_PARENT, CopiesRemoved, CopiesStored
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.kv_events.block_names import BlockNames
from kvstore.kv_events.wire import MOST_TOKENS, Format, Wire, labels, rank_key

NAMES = BlockNames(b"secret", 7)
SPACE = make_namespace(page_tokens=4)


# The structures of vLLM 0.32, whose fields they are.
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Has the fields of vLLM's structure of this name."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Has the fields of vLLM's structure of this name."""


class BlockStored(KVCacheEvent):
    """Has the fields of vLLM's structure of this name."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    """Has the fields of vLLM's structure of this name."""

    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """Has the fields of vLLM's structure of this name."""


class KVEventBatch(EventBatch):
    """Has the fields of vLLM's structure of this name."""

    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def tokens(*values: int) -> bytes:
    """Returns tokens as the core has them."""
    return array("I", values).tobytes()


def stored(space: Namespace = SPACE, tier: int = 1, parent: int = NO_PARENT) -> CopiesStored:
    """Returns the change of two blocks that are stored."""
    return CopiesStored(space, tier, parent, (range(3, 5),), tokens(*range(8), 9, 9))


def salted(salt: bytes = b"", adapter: bytes = b"") -> Namespace:
    """Returns a namespace with a salt and an adapter."""
    space = make_namespace(page_tokens=4)
    space.identity = replace(NamespaceIdentity(b"model"), salt=salt, adapter_digest=adapter)
    return space


def encoded(form: Format, *changes: CopiesStored | CopiesRemoved, rank: int = 0) -> bytes:
    """Returns the bytes of a batch."""
    wire = Wire(form, NAMES)
    return wire.encode(12.5, wire.events(changes), rank)


def test_the_bytes_are_those_of_vllm() -> None:
    """Each kind of event is encoded as vLLM's own structures are."""
    wire = Wire("map", NAMES)
    changes = (stored(), CopiesRemoved(SPACE, 2, (range(3, 5),)), stored(parent=1, tier=2))
    ours = wire.encode(12.5, [wire.cleared(), *wire.events(changes)], 3)
    theirs = KVEventBatch(
        12.5,
        [
            AllBlocksCleared(),
            BlockStored([*NAMES.of((range(3, 5),))], None, [*range(8)], 4, None, "GPU", None),
            BlockRemoved([*NAMES.of((range(3, 5),))], "CPU"),
            BlockStored(
                [*NAMES.of((range(3, 5),))], NAMES.one(1), [*range(8)], 4, None, "CPU", None
            ),
        ],
        3,
    )
    assert ours == msgspec.msgpack.encode(theirs)
    assert msgspec.msgpack.decode(ours, type=KVEventBatch) == theirs


def test_arrays_are_those_of_older_versions() -> None:
    """The name, then the fields in their order."""
    found = msgspec.msgpack.decode(
        encoded("array", stored(parent=1), CopiesRemoved(SPACE, 1, (range(3, 4),)))
    )
    names = NAMES.of((range(3, 5),))
    assert found == [
        12.5,
        [
            ["BlockStored", names, NAMES.one(1), [*range(8)], 4, None, "GPU", None, None],
            ["BlockRemoved", names[:1], "GPU"],
        ],
        0,
    ]
    assert msgspec.msgpack.decode(Wire("array", NAMES).encode(1.0, [], 0)) == [1.0, [], 0]
    cleared = Wire("array", NAMES)
    assert msgspec.msgpack.decode(cleared.encode(1.0, [cleared.cleared()], 0))[1] == [
        ["AllBlocksCleared"]
    ]


def test_removals_side_by_side_are_one_event() -> None:
    """They are of one tier, and no block is stored between them."""
    first, second = CopiesRemoved(SPACE, 1, (range(1, 3),)), CopiesRemoved(SPACE, 1, (range(7, 8),))
    lower = CopiesRemoved(SPACE, 2, (range(1, 2),))
    batch = msgspec.msgpack.decode(
        encoded("map", first, second, lower, stored(), first), type=KVEventBatch
    )
    assert [
        each.block_hashes if isinstance(each, BlockRemoved) else None for each in batch.events
    ] == [
        NAMES.of((range(1, 3), range(7, 8))),
        NAMES.of((range(1, 2),)),
        None,
        NAMES.of((range(1, 3),)),
    ]


def test_very_many_blocks_are_several_events() -> None:
    """Each continues the one before."""
    count = MOST_TOKENS // 4 + 2
    change = CopiesStored(SPACE, 1, 1, (range(2, 2 + count),), tokens(*range(4 * count)))
    batch = msgspec.msgpack.decode(encoded("map", change), type=KVEventBatch)
    first, second = batch.events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.parent_block_hash == NAMES.one(1)
    assert second.parent_block_hash == first.block_hashes[-1]
    assert [*first.block_hashes, *second.block_hashes] == NAMES.of(change.ids)
    assert second.token_ids == [*range(MOST_TOKENS, MOST_TOKENS + 8)]


@pytest.mark.parametrize("form", ["map", "array"])
def test_a_salt_and_an_adapter_are_named(form: Format) -> None:
    """In each block's extra keys, where vLLM has them; the salt in the first one's."""
    space = salted(b"team a", bytes(range(32)))
    [event] = msgspec.msgpack.decode(encoded(form, stored(space)))[1]
    adapter = bytes(range(16)).hex()
    keys = [[adapter, "dynamo-cache-salt:team a"], [adapter]]
    if form == "array":
        assert event[-2:] == [adapter, keys]
        return
    assert (event["lora_name"], event["extra_keys"]) == (adapter, keys)
    assert event["cache_salt"] == "team a"
    [plain] = msgspec.msgpack.decode(encoded(form, stored(salted(b"team a"))))[1]
    assert plain["extra_keys"] == [["dynamo-cache-salt:team a"], None]
    # vLLM's own consumers know no cache_salt, and ignore it.
    batch = msgspec.msgpack.decode(encoded(form, stored(space)), type=KVEventBatch)
    [theirs] = batch.events
    assert isinstance(theirs, BlockStored)
    assert theirs.lora_name == adapter


def test_salts_that_are_no_text_differ_too() -> None:
    """A digest stands for each."""
    salts = [b"\xff" * 32, b"\xff" * 31, b"a\n", b"x" * 200, "ä".encode(), b""]
    names = [labels(NamespaceIdentity(b"model", salt=each))[1] for each in salts]
    assert names[-2:] == ["ä", None]
    assert all(each is not None and each.startswith("blake2b:") for each in names[:4])
    assert len(set(names)) == len(salts)
    assert labels(NamespaceIdentity(b"model", b"\1")) == ("01", None)


def test_models_have_ranks_of_their_own() -> None:
    """Namespaces of one model that differ by salt or adapter do not."""
    assert rank_key(salted(b"x", b"y")) == rank_key(SPACE)
    other = make_namespace(page_tokens=8)
    assert rank_key(other) != rank_key(SPACE)
    other = make_namespace(page_tokens=4)
    other.identity = NamespaceIdentity(b"another model")
    assert rank_key(other) != rank_key(SPACE)
