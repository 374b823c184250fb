"""Faults put into the server on purpose, to show that a chaos run sees what it is for."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Node
from kvstore.core.lease import Lease, LeaseChange
from kvstore.core.membership import Membership
from kvstore.core.values.requests import Caller, Grant, Match, MatchWishes, Sequence
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import KVStoreError
from kvstore.service.store import KVStore
from kvstore.storage.slab import Slab
from kvstore.storage.slab_reader import PageRead, ReadAnswer
from support.chaos_load import PAGE_TOKENS


def _expiry_frees_slots() -> None:
    """A lease past its TTL ends as if its processes were dead."""

    def expire_lease(self: Membership, lease: Lease, now: float) -> list[LeaseChange]:
        return [self.end(lease, now)]

    Membership._expire_lease = expire_lease  # type: ignore[method-assign]  # noqa: SLF001  # the fault


def _dead_writer_published() -> None:
    """What a dead process had reserved is published, as if it had been written."""
    acquire, process_died = PrefixCache.acquire, PrefixCache.process_died
    wanted: dict[int, tuple[Caller, Sequence]] = {}

    def remembering(
        self: PrefixCache,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes,
        **rest: Any,  # noqa: ANN401
    ) -> tuple[Match, Grant | None]:
        match, grant = acquire(self, caller, namespace_id, sequence, wishes, **rest)
        if grant is not None:
            start = grant.start_page * PAGE_TOKENS
            base = wishes.pin_id if start else None
            tokens = sequence.tokens[start * TOKEN_BYTES :]
            wanted[rest["reservation_id"]] = caller, Sequence(tokens, start, base)
        return match, grant

    def publishing(self: PrefixCache, process_id: int, now: float) -> list[LeaseChange]:
        process = self.table.processes.get(process_id)
        for reservation_id in [] if process is None else list(process.lease.reservations):
            if reservation_id in wanted:
                with suppress(KVStoreError):
                    self.insert(
                        wanted[reservation_id][0], reservation_id, wanted[reservation_id][1], now
                    )
        return process_died(self, process_id, now)

    PrefixCache.acquire = remembering  # type: ignore[method-assign]
    PrefixCache.process_died = publishing  # type: ignore[method-assign,assignment]


def _held_pages_evicted() -> None:
    """Eviction spares no page for being held."""
    Node.held_pages = property(lambda _: 0)  # type: ignore[assignment,method-assign]


def _deaths_unnoticed() -> None:
    """A dead process's lease lives on."""
    KVStore.process_died = lambda *_: None  # type: ignore[method-assign]


def _loads_unread() -> None:
    """What tier 3 has is published without its bytes."""

    def read(_: Slab, wanted: Items[PageRead], done: Callable[[ReadAnswer], None]) -> None:
        done(ReadAnswer((0,) * len(wanted), byte_count=0, seconds=0.0))

    Slab.read = read  # type: ignore[method-assign,assignment]


MUTANTS: MappingProxyType[str, Callable[[], None]] = MappingProxyType(
    {
        "dead-writer-published": _dead_writer_published,
        "deaths-unnoticed": _deaths_unnoticed,
        "expiry-frees-slots": _expiry_frees_slots,
        "held-pages-evicted": _held_pages_evicted,
        "loads-unread": _loads_unread,
    }
)
