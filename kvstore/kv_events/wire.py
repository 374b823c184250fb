"""KV events in the bytes of vLLM's publisher: MessagePack, each event a map or an array.

The structures have the fields of ``vllm/distributed/kv_events.py`` (vLLM 0.32) in its order. Older
versions wrote events as arrays, and so does this on request.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from kvstore.core.pool.placement import FIRST
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
# vLLM calls its own blocks GPU on every device, and their copies in host memory CPU.
TIER_1, MEMORY = "GPU", "CPU"
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
    """Makes events of changes, and bytes of events. For one thread.

    A page with a copy in tier 1 is on the medium ``TIER_1``. If the store has a tier 2, each page
    with a copy in either tier is on ``MEMORY``. There no page is below one that is missing, so a
    consumer finds as long a prefix as a match does.
    """

    def __init__(self, form: Format, names: BlockNames, *, has_tier_2: bool) -> None:
        self._is_map = form == "map"
        self._has_tier_2 = has_tier_2
        self._names = names
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, ts: float, events: list[WireEvent], rank: int) -> bytes:
        """Returns a batch as bytes."""
        return self._encoder.encode(WireBatch(ts, events, rank))

    def cleared(self) -> WireEvent:
        """Returns the event after which a consumer knows no block of the publisher."""
        return MapCleared() if self._is_map else ArrayCleared()

    def events(self, changes: Iterable[CopyChange]) -> list[WireEvent]:
        """Returns the events of changes, in order. Removals side by side are an event a medium."""
        events: list[WireEvent] = []
        removed: dict[str, list[int]] = {TIER_1: [], MEMORY: []}
        for each in changes:
            if isinstance(each, CopiesRemoved):
                self._remove(each, removed)
            else:
                events += self._removed(removed)
                events += self._stored(each)
        return events + self._removed(removed)

    def _remove(self, change: CopiesRemoved, removed: dict[str, list[int]]) -> None:
        """Adds the names of removed blocks to those of their media."""
        names = self._names.of(change.ids)
        if change.tier == FIRST:
            removed[TIER_1] += names
        if self._has_tier_2:
            removed[MEMORY] += names[change.shared_count :]

    def _removed(self, removed: dict[str, list[int]]) -> list[WireEvent]:
        """Returns the events of removed blocks, and takes them out of ``removed``."""
        make = MapRemoved if self._is_map else ArrayRemoved
        events: list[WireEvent] = [make(names, each) for each, names in removed.items() if names]
        removed.update({each: [] for each in removed})
        return events

    def _stored(self, change: CopiesStored) -> Iterable[WireEvent]:
        """Yields the events of stored blocks, by medium."""
        names = self._names.of(change.ids)
        if change.tier == FIRST:
            yield from self._stored_on(TIER_1, change, names, 0)
        if self._has_tier_2:
            yield from self._stored_on(MEMORY, change, names, change.shared_count)

    def _stored_on(
        self, medium: str, change: CopiesStored, names: list[int], start: int
    ) -> Iterable[WireEvent]:
        """Yields the event of the blocks from ``start`` on: one, unless they have many tokens."""
        page_tokens = change.space.layout.page_tokens
        parent = None if change.parent_id == NO_PARENT else self._names.one(change.parent_id)
        if start:
            parent = names[start - 1]
        most = max(MOST_TOKENS // page_tokens, 1)
        for first in range(start, len(names), most):
            part = names[first : first + most]
            begin = first * page_tokens * TOKEN_BYTES
            end = begin + len(part) * page_tokens * TOKEN_BYTES
            tokens = array("I", change.tokens[begin:end])
            yield self._stored_part(change.space, medium, part, parent, tokens.tolist())
            parent = part[-1]

    def _stored_part(
        self,
        space: PageSpace,
        medium: str,
        names: list[int],
        parent: int | None,
        tokens: list[int],
    ) -> WireEvent:
        adapter, salt = labels(space.identity)
        keys = extra_keys(len(names), adapter, salt)
        size = space.layout.page_tokens
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
