"""Faults put into the server on purpose, to show that a chaos run sees what it is for."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from chaos.load import PAGE_TOKENS
from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Node
from kvstore.core.leases.lease import Lease, LeaseChange
from kvstore.core.values.requests import Caller, Grant, Match, MatchOptions, Sequence
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.lease_lifecycle import Lifecycle
from kvstore.core.verbs.verify import Inspection
from kvstore.errors import KVStoreError
from kvstore.service.leases import Leases
from kvstore.storage.page_store import PageRead, ReadAnswer
from kvstore.storage.slab.slab import Slab


def _expiry_frees_slots() -> None:
    """A lease past its TTL ends as if its processes were dead."""

    def expire_lease(self: Lifecycle, lease: Lease, now: float) -> list[LeaseChange]:
        return self.end(lease, now)

    Lifecycle._expire_lease = expire_lease  # type: ignore[method-assign]  # the fault


def _dead_writer_published() -> None:
    """Publishes the reservations of a dead process, as if it had been written."""
    build = PrefixCache.__init__
    wanted: dict[int, tuple[Caller, Sequence]] = {}

    def faulty(cache: PrefixCache, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        build(cache, *arguments, **named)
        acquire, process_died = cache.acquire_with_checks, cache.process_died

        def remembering(
            caller: Caller,
            namespace_id: bytes,
            sequence: Sequence,
            options: MatchOptions,
            **rest: Any,  # noqa: ANN401
        ) -> tuple[Match, Grant | None, Inspection | None]:
            match, grant, inspection = acquire(caller, namespace_id, sequence, options, **rest)
            if grant is not None:
                start = grant.start_page * PAGE_TOKENS
                base = options.pin_id if start else None
                tokens = sequence.tokens[start * TOKEN_BYTES :]
                wanted[rest["reservation_id"]] = caller, Sequence(tokens, start, base)
            return match, grant, inspection

        def publishing(process_id: int, now: float) -> list[LeaseChange]:
            process = cache.table.processes.get(process_id)
            for reservation_id in [] if process is None else list(process.lease.reservations):
                if reservation_id in wanted:
                    with suppress(KVStoreError):
                        caller, sequence = wanted[reservation_id]
                        cache.insert(caller, reservation_id, sequence, now)
            return process_died(process_id, now)

        cache.acquire_with_checks = remembering
        cache.process_died = publishing

    PrefixCache.__init__ = faulty  # type: ignore[method-assign,assignment]


def _held_pages_evicted() -> None:
    """Eviction spares no page for being held."""
    Node.held_pages = property(lambda _: 0)  # type: ignore[assignment,method-assign]


def _deaths_unnoticed() -> None:
    """A dead process's lease lives on."""
    Leases.process_died = lambda *_: None  # type: ignore[method-assign]


def _loads_unread() -> None:
    """Publishes pages of tier 3 without its bytes."""

    def read(
        _: Slab, wanted: Items[PageRead], done: Callable[[ReadAnswer], None], __: float
    ) -> None:
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
