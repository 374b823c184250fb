"""The rows of a journal's tables, and their bytes.

A table has at most one row for each key. A row that is put replaces the row of its key at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from kvstore.core.journal.packing import pack, unpack
from kvstore.core.values.layout import (
    NamespaceIdentity,
    OpaqueContent,
    PagedContent,
    PageLayout,
)

TierRuns: TypeAlias = "tuple[tuple[int, int], ...] | None"


class Table(IntEnum):
    """The tables of a journal, with the keys of their rows."""

    # By name.
    COUNTERS = 1
    # By number.
    NAMESPACES = 2
    EXTENTS = 3
    LEASES = 4
    PROCESSES = 5
    # By the process's number.
    MAPPINGS = 6
    NAMED_PINS = 7
    # By lease, kind and id: HoldKey.
    HOLDS = 8
    # By number.
    REMOVALS = 9


class CounterRow(NamedTuple):
    """A number that was given out last, or that no number given out is beyond."""

    value: int


class NamespaceRow(NamedTuple):
    """A namespace. ``arena_ids`` are those of its tiers, the lowest first."""

    number: int
    namespace_id: bytes
    tenant: str
    identity: NamespaceIdentity
    layout: PageLayout
    arena_ids: tuple[int, ...]
    deleted: bool = False


class ExtentRow(NamedTuple):
    """An extent, and the key of its arena. ``page_bytes`` is the size of its slots.

    ``arena_offset`` is the byte of its first slot if all extents of the arena lie side by side.
    """

    extent_id: int
    arena_id: int
    tenant: str
    page_bytes: int
    tensor_parallel_size: int
    tier: int
    slot_count: int
    arena_offset: int = 0
    retiring: bool = False


class LeaseRow(NamedTuple):
    """A lease that has not ended. ``arena_ids`` are those of its namespaces."""

    number: int
    tenant: str
    lease_id: bytes
    secret_digest: bytes
    ttl: float
    features: tuple[str, ...]
    display_name: str
    arena_ids: tuple[int, ...] = ()
    expired: bool = False


class ProcessRow(NamedTuple):
    """A process, and the number of its lease."""

    process_id: int
    pid: int
    uid: int
    lease: int


class MappingRow(NamedTuple):
    """The extents that a process was given."""

    process_id: int
    pid: int
    extent_ids: tuple[int, ...]


class NamedPinRow(NamedTuple):
    """A named pin. ``ttl`` is in seconds, or infinity. ``page_id`` is its last page."""

    number: int
    namespace: int
    name: str
    page_id: int
    tiers: TierRuns
    ttl: float
    fingerprint: bytes


class RemovalRow(NamedTuple):
    """A removal that tier 3 has not reported yet. Without ``page_digest`` it is of all pages."""

    number: int
    namespace_id: bytes
    namespace_digest: bytes
    page_digest: bytes | None


class IdScope(IntEnum):
    """The scopes of the ids of a lease. A source pin is a pin."""

    PIN = 1
    RESERVATION = 2


# Python 3.11 takes 0.2 us to look a member up in its enumeration, and a named tuple's
# constructor costs a frame.
PIN_SCOPE, RESERVATION_SCOPE = int(IdScope.PIN), int(IdScope.RESERVATION)
_new_tuple = tuple.__new__


class HoldKey(NamedTuple):
    """The key of a hold, or of its tombstone."""

    lease: int
    kind: int
    hold_id: int


class HoldRow(NamedTuple):
    """A pin or a source pin. A reservation has no row: its records say all of it.

    ``page_id`` is the last page that it holds, or zero. ``source_id`` is the id of a pin's
    source pin. Only a source pin has a ``valid_token_count``, which is its own. ``groups`` are
    those of ``Pin``, and ``group_pages`` the ids of their pages with the tiers of their copies.
    """

    lease: int
    kind: int
    hold_id: int
    namespace: int
    page_id: int = 0
    tiers: TierRuns = None
    next_token: int | None = None
    source_id: int | None = None
    valid_token_count: int = 0
    groups: tuple[tuple[int, int, int], ...] = ()
    group_pages: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> HoldKey:
        """The key of its row."""
        return _new_tuple(HoldKey, self[:3])


Row: TypeAlias = (
    CounterRow
    | NamespaceRow
    | ExtentRow
    | LeaseRow
    | ProcessRow
    | MappingRow
    | NamedPinRow
    | RemovalRow
    | HoldRow
)

# Kind, flags, valid tokens, lease, namespace, hold, page, next token, source: 48 bytes. Rows
# with tiers or groups are longer.
_HOLD = Struct("<BBxxIIIQQQQ")
_HAS_TOKEN, _HAS_SOURCE, _HAS_MORE = 1, 2, 4


def encode_hold(row: HoldRow) -> bytes:
    """Returns the bytes of a hold's row."""
    lease, kind, hold_id, namespace, page_id, tiers, token, source, valid, *groups = row
    has_more = tiers is not None or groups[0] or groups[1]
    flags = (
        (_HAS_TOKEN if token is not None else 0)
        | (_HAS_SOURCE if source is not None else 0)
        | (_HAS_MORE if has_more else 0)
    )
    numbers = (page_id, token or 0, source or 0)
    head = _HOLD.pack(kind, flags, valid, lease, namespace, hold_id, *numbers)
    return head + pack((tiers, *groups)) if has_more else head


def decode_hold(data: bytes) -> HoldRow:
    """Returns the row that ``encode_hold`` made of it."""
    kind, flags, valid, lease, namespace, hold_id, page_id, token, source = _HOLD.unpack_from(data)
    tiers, groups, group_pages = (None, (), ())
    if flags & _HAS_MORE:
        tiers, groups, group_pages = unpack(data[_HOLD.size :])
    return HoldRow(
        lease,
        kind,
        hold_id,
        namespace,
        page_id,
        tiers,
        token if flags & _HAS_TOKEN else None,
        source if flags & _HAS_SOURCE else None,
        valid,
        groups,
        group_pages,
    )


_FORMS: Mapping[Table, Callable[..., Row]] = {
    Table.COUNTERS: CounterRow,
    Table.EXTENTS: ExtentRow,
    Table.LEASES: LeaseRow,
    Table.PROCESSES: ProcessRow,
    Table.MAPPINGS: MappingRow,
    Table.NAMED_PINS: NamedPinRow,
    Table.REMOVALS: RemovalRow,
}


def encode_row(row: Row) -> bytes:
    """Returns the bytes of a row."""
    if isinstance(row, HoldRow):
        return encode_hold(row)
    if isinstance(row, NamespaceRow):
        return pack(_flat(row))
    return pack(tuple(row))


def decode_row(table: Table, data: bytes) -> Row:
    """Returns the row of a table that ``encode_row`` made of it.

    Raises ValueError for bytes that are none.
    """
    if table is Table.HOLDS:
        return decode_hold(data)
    if table is Table.NAMESPACES:
        return _unflat(unpack(data))
    return _FORMS[table](*unpack(data))


def _flat(row: NamespaceRow) -> tuple[object, ...]:
    layout = row.layout
    sizes = (layout.page_tokens, layout.page_bytes, layout.tensor_parallel_size)
    is_paged = isinstance(layout.content, PagedContent)
    return (
        *(row.number, row.namespace_id, row.tenant, astuple(row.identity)),
        *(sizes, is_paged, astuple(layout.content), row.arena_ids, row.deleted),
    )


def _unflat(values: tuple[Any, ...]) -> NamespaceRow:
    number, namespace_id, tenant, identity, sizes, is_paged, content, arena_ids, deleted = values
    of_pages = PagedContent(*content) if is_paged else OpaqueContent(*content)
    page_tokens, page_bytes, tensor_parallel_size = sizes
    layout = PageLayout(page_tokens, page_bytes, tensor_parallel_size, of_pages)
    named = NamespaceIdentity(*identity)
    return NamespaceRow(number, namespace_id, tenant, named, layout, arena_ids, deleted)
