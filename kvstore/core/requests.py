"""What core is asked and what it answers."""

from dataclasses import dataclass
from typing import NamedTuple

from kvstore.core.runs import Run


class Sequence(NamedTuple):
    """A sequence's tokens from ``position`` (in tokens) on.

    What lies before ``position`` is named by a pin or a reservation of the same
    lease, at most one of them.
    """

    tokens: bytes
    position: int = 0
    base_pin_id: int | None = None
    base_reservation_id: int | None = None


class MatchWishes(NamedTuple):
    """How a match is asked for: the pins to take, and what it may answer.

    Without ``source_pin_id`` no source page is looked for. ``prefill_tokens_per_second`` is
    how fast the caller says that it computes, 0 where it does not: it is counted by, and
    tells no match from another.
    """

    pin_id: int
    source_pin_id: int | None = None
    accept_next_token: bool = False
    prefill_tokens_per_second: int = 0

    @property
    def hold_count(self) -> int:
        """How many pins it may take."""
        return 1 if self.source_pin_id is None else 2


class ReservationRequest(NamedTuple):
    """Slots wanted for pages ``start_page`` to ``start_page + page_count``, in total."""

    reservation_id: int
    start_page: int
    page_count: int


@dataclass(frozen=True)
class NamedPinRequest:
    """A hold wanted on what is cached of ``tokens``; ``ttl`` in seconds, None: no end."""

    name: str
    tokens: bytes
    ttl: float | None = None
    require_all: bool = False


class Source(NamedTuple):
    """A page to copy from: a run of one slot, of which the first tokens are of use."""

    pin_id: int
    page: Run
    valid_token_count: int


class InFlight(NamedTuple):
    """That an open reservation is about to compute more of a sequence than is cached.

    Through ``token_count`` tokens, from the sequence's beginning, in whole pages; it has
    inserted through ``inserted_token_count``, the last of them ``idle`` seconds ago.
    """

    token_count: int
    inserted_token_count: int
    idle: float


class Match(NamedTuple):
    """The longest cached prefix; without runs and source a miss, or nothing was pinned.

    ``tier_3_token_count`` is not the core's to say: tokens beyond the runs that tier 3 has.
    """

    matched_token_count: int
    runs: tuple[Run, ...]
    source: Source | None = None
    next_token: int | None = None
    tier_3_token_count: int = 0
    in_flight: InFlight | None = None


@dataclass(frozen=True)
class Peeked:
    """What a match would cover: tokens in place, their pages by tier, tokens to copy.

    ``tiers`` are (the nearest tier that has a copy, number of pages). ``tier_3_token_count``
    is not the core's to say: tokens from the first on that tier 3 has.
    """

    matched_token_count: int
    tiers: tuple[tuple[int, int], ...]
    source_token_count: int = 0
    tier_3_token_count: int = 0
    in_flight: InFlight | None = None

    @property
    def page_count(self) -> int:
        """Pages that would be used in place."""
        return sum(count for _, count in self.tiers)


class Grant(NamedTuple):
    """All slots of a reservation, in page order from ``start_page``."""

    reservation_id: int
    start_page: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Inserted:
    """The pages that the index holds for what was inserted.

    ``published_page_count`` of them are the caller's own slots.
    """

    runs: tuple[Run, ...]
    published_page_count: int


@dataclass(frozen=True)
class Removed:
    """What left the index: pages given back, and pages that go at their last release."""

    evicted_page_count: int
    detached_page_count: int

    def plus(self, other: "Removed") -> "Removed":
        """Return what left in both."""
        return Removed(
            self.evicted_page_count + other.evicted_page_count,
            self.detached_page_count + other.detached_page_count,
        )
