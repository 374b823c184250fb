"""The holds of the naive model's leases, and its named pins."""

from dataclasses import dataclass, field

from kvstore.core.values.requests import Match, MatchOptions, Sequence
from naive.copies import Held, Path, Slot


@dataclass
class ModelHold:
    """A path that may not be recycled: prefixes and the slots that held them."""

    path: Path
    kept: set[Slot] = field(default_factory=set, kw_only=True)


@dataclass
class ModelPin(ModelHold):
    """A match: what was asked, and what it answered besides its path."""

    sequence: Sequence
    options: MatchOptions
    match: Match
    groups: list[ModelHold] = field(default_factory=list)


@dataclass
class Expected:
    """The result that a match must have.

    ``sources`` are the slots of the pages that agree longest, for ``valid`` tokens;
    one of them is answered, unless ``may_lack`` says that it may be unmapped.
    """

    path: Path
    sources: dict[Slot, bytes] = field(default_factory=dict)
    valid: int = 0
    may_lack: bool = False
    next_token: int | None = None


@dataclass
class ModelReservation:
    """Slots granted in page order; ``own[k]`` while slot k was not published.

    ``tokens`` are all of the sequence through what was inserted, of which the last
    page may be partial. ``announced`` are the whole pages that others know to be coming,
    below the pin ``pin_id``, from the beginning; ``advanced_at`` is when it last got on.
    ``moved`` are offsets whose slots went to another reservation. ``group_pages`` are those that
    it inserted, by group and position; the slots of those that were there are ``duplicates``.
    ``base`` is what covered the path above its first page of a group.
    """

    start: int
    slots: list[Slot]
    own: list[bool]
    inserted: int = 0
    tokens: bytes = b""
    path: Path = field(default_factory=list)
    kept: set[Slot] = field(default_factory=set)
    announced: bytes = b""
    pin_id: int = 0
    advanced_at: float = 0.0
    moved: set[int] = field(default_factory=set)
    duplicates: list[Slot] = field(default_factory=list)
    group_pages: dict[tuple[int, int], bool] = field(default_factory=dict)
    base: tuple[str, int] | None = None

    def is_elsewhere(self, base: tuple[str, int] | None) -> bool:
        """Returns whether pages of groups, and no others, were inserted below another base."""
        return bool(self.group_pages) and not self.inserted and base != self.base

    @property
    def slot_end(self) -> int:
        """The offset of the first slot that moved, or the number of slots."""
        return min(self.moved, default=len(self.slots))

    def move_out(self, offset: int) -> None:
        """Gives the slot at an offset to another reservation."""
        self.own[offset] = False
        self.moved.add(offset)
        self.announced = b""

    def advance(self, *, goes_on: bool, now: float) -> None:
        """Notes an insert; it is no prefill any more where that was not what is announced."""
        if goes_on and len(self.tokens) < len(self.announced):
            self.advanced_at = now
        else:
            self.announced = b""

    def unpublished(self) -> list[Slot]:
        """Returns the slots that are still the reservation's own."""
        own = [slot for slot, own in zip(self.slots, self.own, strict=True) if own]
        return own + self.duplicates


@dataclass
class ModelLease:
    """A lease: what it holds and what it released."""

    lease_id: bytes
    secret: bytes
    ttl: float
    renewed_at: float
    expired: bool = False
    processes: dict[int, set[int]] = field(default_factory=dict)
    pins: dict[int, ModelPin] = field(default_factory=dict)
    sources: dict[int, ModelHold] = field(default_factory=dict)
    reservations: dict[int, ModelReservation] = field(default_factory=dict)
    dead_pins: set[int] = field(default_factory=set)
    dead_reservations: set[int] = field(default_factory=set)

    def every_hold(self) -> list[Held]:
        """Returns all that it holds."""
        groups = [hold for pin in self.pins.values() for hold in pin.groups]
        return [*self.pins.values(), *self.sources.values(), *self.reservations.values(), *groups]

    def holds(self) -> list[Path]:
        """Returns all paths that it holds."""
        return [hold.path for hold in self.every_hold()]

    def usable(self, extents: dict[int, int]) -> set[int]:
        """Returns the extents that every process has mapped."""
        usable = set(extents)
        for mapped in self.processes.values():
            usable &= mapped
        return usable


@dataclass
class ModelNamedPin:
    """A hold of an operator: whole pages asked for, those that it has, and until when."""

    asked: bytes
    path: Path
    due: float
