"""Requests to the core and its answers, as plain data."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import NamedTuple

from kvstore.core.values.runs import Run


class Identity(NamedTuple):
    """The sender of a request, known from a credential and never from the request."""

    tenant: str
    admin: bool = False

    def sees(self, tenant: str) -> bool:
        """Returns True if this identity may know of things of ``tenant``."""
        return self.admin or self.tenant == tenant


class Caller(NamedTuple):
    """A request's lease: its id, the digest of its secret, and the epoch that granted it.

    The core never sees a secret. ``epoch`` is None while the caller knows none: to grant a
    lease, or to bind a process.
    """

    identity: Identity
    lease_id: bytes
    secret_digest: bytes
    epoch: int | None


class ExpectedReuse(IntEnum):
    """The expectation that a sequence is asked for again. Numbers are those of the wire."""

    UNKNOWN = 0
    CONTINUES = 1
    ONE_SHOT = 2


class Hint(NamedTuple):
    """A caller's hint about some pages. It affects the order of evictions and nothing else.

    The expectation holds until ``until``, in seconds of the cache's clock. The cache evicts
    pages of a higher ``priority`` later; zero is the default. The cache itself sets
    ``returned`` on pages that it evicted and that were published again soon after.
    """

    expected_reuse: ExpectedReuse = ExpectedReuse.UNKNOWN
    until: float = inf
    priority: int = 0
    returned: bool = False


NO_HINT = Hint()


class ReuseHint(NamedTuple):
    """A hint as a caller gives it. The expectation holds for ``horizon`` seconds from receipt."""

    expected_reuse: ExpectedReuse = ExpectedReuse.UNKNOWN
    horizon: float = inf
    priority: int = 0

    def at(self, now: float) -> Hint:
        """Returns the hint in the form that nodes keep, received at ``now``."""
        return Hint(self.expected_reuse, now + self.horizon, self.priority)


class Sequence(NamedTuple):
    """A sequence's tokens from ``position`` on, which is in tokens.

    A pin or a reservation of the same lease names the tokens before ``position``. A sequence
    has at most one of the two.
    """

    tokens: bytes
    position: int = 0
    base_pin_id: int | None = None
    base_reservation_id: int | None = None


class GroupWindow(NamedTuple):
    """The pages of a KV cache group that a match needs: the last ``page_count`` before its end.

    Zero means all.
    """

    group: int
    page_count: int


class MatchOptions(NamedTuple):
    """The options of a match: the pins to take, and the kinds of answer that are allowed.

    Without ``source_pin_id`` the match looks for no source page. ``prefill_tokens_per_second``
    is the caller's own speed, or 0 if it states none. Counters use it; it does not make two
    matches different. ``groups`` are what it needs of further KV cache groups, from page
    ``group_start_page`` on. ``is_base`` is set for the mere base of an insert, which is
    neither a lookup nor a hit.
    """

    pin_id: int
    source_pin_id: int | None = None
    accept_next_token: bool = False
    prefill_tokens_per_second: int = 0
    groups: tuple[GroupWindow, ...] = ()
    group_start_page: int = 0
    is_base: bool = False


class GroupInsert(NamedTuple):
    """Pages of a KV cache group to publish: their positions on the path, slots and checksums.

    Each slot is an offset in another reservation. ``checksums`` is as long, or empty.
    """

    group: int
    page_positions: Items[int]
    slot_offsets: Items[int]
    checksums: Items[int] = ()


class SlotMoves(NamedTuple):
    """Slots of reservation ``reservation_id`` that an insert moves to its own reservation.

    ``offsets`` are for the last pages of the sequence, and those of ``groups`` for their pages.
    """

    reservation_id: int
    offsets: Items[int] = ()
    groups: Items[GroupInsert] = ()


class ReservationRequest(NamedTuple):
    """A request for slots for pages ``start_page`` to ``start_page + page_count``, in total."""

    reservation_id: int
    start_page: int
    page_count: int


@dataclass(frozen=True)
class NamedPinRequest:
    """A request to hold the cached part of ``tokens``. ``ttl`` is in seconds; None has no end."""

    name: str
    tokens: bytes
    ttl: float | None = None
    require_all: bool = False


class Source(NamedTuple):
    """A page to copy from: a run of one slot, and the number of its first tokens that are valid."""

    pin_id: int
    page: Run
    valid_token_count: int


class InFlight(NamedTuple):
    """An open reservation that is about to compute more of a sequence than is cached.

    It reaches to ``token_count`` tokens from the sequence's beginning, in whole pages. It has
    inserted ``inserted_token_count`` of them, the last of them ``idle`` seconds ago.
    """

    token_count: int
    inserted_token_count: int
    idle: float


class GroupPages(NamedTuple):
    """The pages of a KV cache group from page ``start_page`` of the sequence on."""

    group: int
    start_page: int
    runs: tuple[Run, ...]


class Match(NamedTuple):
    """The longest cached prefix. Without runs and source it is a miss, or pinned nothing.

    The core leaves ``tier_3_token_count``, ``tier_3_loaded_token_count`` and
    ``remote_loaded_token_count`` at zero. They are the numbers of tokens after the runs that
    tier 3 has, of the last matched tokens that only tier 3 had as the call arrived, and of the
    last of those that came from the store that hosts share. ``groups`` are in the order of the
    request.
    """

    matched_token_count: int
    runs: tuple[Run, ...]
    source: Source | None = None
    next_token: int | None = None
    tier_3_token_count: int = 0
    in_flight: InFlight | None = None
    groups: tuple[GroupPages, ...] = ()
    tier_3_loaded_token_count: int = 0
    remote_loaded_token_count: int = 0


class Prefetched(NamedTuple):
    """The tokens of a sequence's whole pages, by what a match would find of them.

    ``memory_token_count`` are in memory. The next ``loading_token_count`` are being loaded. Then
    tier 3 is known to have ``declined_token_count`` more, which are not loaded now. The last
    ``remote_token_count`` of these two are in the store that hosts share.
    """

    memory_token_count: int = 0
    loading_token_count: int = 0
    declined_token_count: int = 0
    remote_token_count: int = 0


@dataclass(frozen=True)
class Peeked:
    """The prefix that a match would cover: tokens in place, their pages by tier, tokens to copy.

    ``tiers`` are pairs of the nearest tier with a copy and a number of pages. The core leaves
    ``tier_3_token_count`` at zero: it is the number of leading tokens that the disk has.
    """

    matched_token_count: int
    tiers: tuple[tuple[int, int], ...]
    source_token_count: int = 0
    tier_3_token_count: int = 0
    in_flight: InFlight | None = None

    @property
    def page_count(self) -> int:
        """The number of pages that would be used in place."""
        return sum(count for _, count in self.tiers)


class Grant(NamedTuple):
    """All slots of a reservation, in page order from ``start_page`` on."""

    reservation_id: int
    start_page: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Inserted:
    """The pages that the index holds for an insert.

    ``published_page_count`` of them are the caller's own slots. ``groups`` are pairs of a
    group and the positions of its pages that were published, in the order of the request.
    """

    runs: tuple[Run, ...]
    published_page_count: int
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Removed:
    """The pages that left the index: those given back, and those that wait for a last release.

    ``unsettled`` says that a page store has not confirmed in time that none of them can return.
    """

    evicted_page_count: int
    detached_page_count: int
    unsettled: bool = False

    def plus(self, other: "Removed") -> "Removed":
        """Returns the sums of both."""
        return Removed(
            self.evicted_page_count + other.evicted_page_count,
            self.detached_page_count + other.detached_page_count,
        )
