"""KV events in the bytes of vLLM's publisher: MessagePack, each event a map or an array.

The structures have the fields of ``vllm/distributed/kv_events.py`` (vLLM 0.32) in its order. Older
versions wrote events as arrays, and so does this on request.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from kvstore.core.values.change_log import (
    NO_PARENT,
    CopiesRemoved,
    CopiesStored,
    CopyChange,
    PageSpace,
)
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.kv_events.block_names import BlockNames

Format: TypeAlias = Literal["map", "array"]
# vLLM calls its own blocks GPU on every device, and blocks in a lower tier CPU.
MEDIA = {1: "GPU", 2: "CPU"}
# The most tokens of an event, a message of about a megabyte.
MOST_TOKENS = 1 << 18
# Dynamo reads a salt from the extra keys only behind this mark.
SALT_MARK = "dynamo-cache-salt:"

ExtraKeys: TypeAlias = list[list[str] | None]


class MapStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored", frozen=True):
    """``BlockStored`` as a map. ``cache_salt`` is Dynamo's addition."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys | None = None
    cache_salt: str | None = None


class MapRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved", frozen=True):
    """``BlockRemoved`` as a map."""

    block_hashes: list[int]
    medium: str | None


class MapCleared(msgspec.Struct, gc=False, tag="AllBlocksCleared", frozen=True):
    """``AllBlocksCleared`` as a map."""


class ArrayStored(
    msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag="BlockStored", frozen=True
):
    """``BlockStored`` as an array."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys | None = None


class ArrayRemoved(
    msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag="BlockRemoved", frozen=True
):
    """``BlockRemoved`` as an array."""

    block_hashes: list[int]
    medium: str | None


class ArrayCleared(msgspec.Struct, array_like=True, gc=False, tag="AllBlocksCleared", frozen=True):
    """``AllBlocksCleared`` as an array."""


WireEvent: TypeAlias = (
    MapStored | MapRemoved | MapCleared | ArrayStored | ArrayRemoved | ArrayCleared
)


class WireBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, frozen=True):
    """A batch of events: the time in seconds since 1970, the events, and the rank."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int | None = None


class Wire:
    """Makes events of changes, and bytes of events. For one thread."""

    def __init__(self, form: Format, names: BlockNames) -> None:
        self._is_map = form == "map"
        self._names = names
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, ts: float, events: list[WireEvent], rank: int) -> bytes:
        """Returns a batch as bytes."""
        return self._encoder.encode(WireBatch(ts, events, rank))

    def cleared(self) -> WireEvent:
        """Returns the event after which a consumer knows no block of the publisher."""
        return MapCleared() if self._is_map else ArrayCleared()

    def events(self, changes: Iterable[CopyChange]) -> list[WireEvent]:
        """Returns the events of changes, in order. Removals side by side are one event."""
        events: list[WireEvent] = []
        removed: list[int] = []
        tier = 0
        for each in changes:
            goes_on = isinstance(each, CopiesRemoved) and each.tier == tier
            if removed and not goes_on:
                events.append(self._removed(removed, tier))
                removed = []
            if isinstance(each, CopiesRemoved):
                removed += self._names.of(each.ids)
                tier = each.tier
            else:
                events += self._stored(each)
        if removed:
            events.append(self._removed(removed, tier))
        return events

    def _removed(self, names: list[int], tier: int) -> WireEvent:
        return (MapRemoved if self._is_map else ArrayRemoved)(names, MEDIA[tier])

    def _stored(self, change: CopiesStored) -> Iterable[WireEvent]:
        """Yields the events of stored blocks: one, unless their tokens are very many."""
        page_tokens = change.space.layout.page_tokens
        names = self._names.of(change.ids)
        parent = None if change.parent_id == NO_PARENT else self._names.one(change.parent_id)
        most = max(MOST_TOKENS // page_tokens, 1)
        for first in range(0, len(names), most):
            part = names[first : first + most]
            begin = first * page_tokens * TOKEN_BYTES
            end = begin + len(part) * page_tokens * TOKEN_BYTES
            tokens = array("I", change.tokens[begin:end])
            yield self._stored_part(change, part, parent, tokens.tolist())
            parent = part[-1]

    def _stored_part(
        self, change: CopiesStored, names: list[int], parent: int | None, tokens: list[int]
    ) -> WireEvent:
        layout, medium = change.space.layout, MEDIA[change.tier]
        adapter, salt = labels(change.space.identity)
        keys = extra_keys(len(names), adapter, salt)
        size = layout.page_tokens
        if self._is_map:
            return MapStored(names, parent, tokens, size, None, medium, adapter, keys, salt)
        return ArrayStored(names, parent, tokens, size, None, medium, adapter, keys)


# Bytes of the digest that stands for an adapter, or for a salt that is no short text.
LABEL_BYTES = 16
MOST_SALT = 128


def labels(identity: NamespaceIdentity) -> tuple[str | None, str | None]:
    """Returns the names of a namespace's adapter and of its salt, each None if it has none.

    An adapter is named by its digest. A salt of short text is its own name, as for vLLM.
    """
    if not (identity.adapter_digest or identity.salt):
        return None, None
    adapter = identity.adapter_digest.hex()[: 2 * LABEL_BYTES] or None
    salt = identity.salt
    text = salt.decode(errors="replace")
    if text.encode() != salt or not text.isprintable() or len(text) > MOST_SALT:
        text = f"blake2b:{blake2b(salt, digest_size=LABEL_BYTES).hexdigest()}"
    return adapter, text or None


def extra_keys(count: int, adapter: str | None, salt: str | None) -> ExtraKeys | None:
    """Returns what an event says that its blocks' hashes depend on, beside tokens.

    The list has an entry for each of ``count`` blocks. The first block's has the salt.
    """
    if adapter is None and salt is None:
        return None
    own = [] if adapter is None else [adapter]
    marked = [] if salt is None else [SALT_MARK + salt]
    return [own + marked, *([own or None] * (count - 1))]


def rank_key(space: PageSpace) -> tuple[bytes, object]:
    """Returns what tells models apart: equal tokens are equal blocks within one of these."""
    return space.identity.model_digest, space.layout
