"""The naive model of the cache: dictionaries of prefixes, no tree, no anchors.

A prefix is the bytes of its whole pages. What the model can't know, which page
an eviction policy prefers, it reads off the cache and judges: nothing held may
go, nothing may go without its continuations, nothing more than was needed.
"""

from dataclasses import dataclass, field

Slot = tuple[int, int]
Path = list[tuple[bytes, Slot]]


@dataclass
class ModelHold:
    """A path that may not be recycled: prefixes and the slots that held them."""

    path: Path


@dataclass
class ModelReservation:
    """Slots granted in page order; ``own[k]`` while slot k was not published."""

    start: int
    slots: list[Slot]
    own: list[bool]
    inserted: int = 0
    path: Path = field(default_factory=list)

    def unpublished(self) -> list[Slot]:
        """Return the slots that are still the reservation's own."""
        return [slot for slot, own in zip(self.slots, self.own, strict=True) if own]


@dataclass
class ModelLease:
    """A lease: what it holds and what it released."""

    lease_id: bytes
    secret: bytes
    ttl: float
    renewed_at: float
    expired: bool = False
    processes: dict[int, set[int]] = field(default_factory=dict)
    pins: dict[int, tuple[object, ModelHold]] = field(default_factory=dict)
    reservations: dict[int, ModelReservation] = field(default_factory=dict)
    dead_pins: set[int] = field(default_factory=set)
    dead_reservations: set[int] = field(default_factory=set)

    def usable(self, extents: dict[int, int]) -> set[int]:
        """Return the extents that every process has mapped."""
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


@dataclass
class Model:
    """Everything cached and everything held."""

    width: int
    cached: dict[bytes, Slot] = field(default_factory=dict)
    leases: dict[bytes, ModelLease] = field(default_factory=dict)
    named: dict[str, ModelNamedPin] = field(default_factory=dict)
    ended: set[bytes] = field(default_factory=set)
    extents: dict[int, int] = field(default_factory=dict)
    # What the last writer of a slot wrote into it.
    memory: dict[Slot, bytes] = field(default_factory=dict)

    def prefixes(self, tokens: bytes) -> list[bytes]:
        """Return the prefixes of whole pages of ``tokens``, shortest first."""
        pages = len(tokens) // self.width
        return [tokens[: (k + 1) * self.width] for k in range(pages)]

    def longest(self, tokens: bytes, pages: int) -> Path:
        """Return the cached path of at most ``pages`` pages."""
        path: Path = []
        for prefix in self.prefixes(tokens)[:pages]:
            if prefix not in self.cached:
                break
            path.append((prefix, self.cached[prefix]))
        return path

    def attached(self, path: Path) -> Path:
        """Return the leading part of a held path that the index still has."""
        kept: Path = []
        for prefix, slot in path:
            if self.cached.get(prefix) != slot:
                break
            kept.append((prefix, slot))
        return kept

    def held(self) -> set[bytes]:
        """Return the cached prefixes that some hold protects, a lease's or a named one."""
        named = {prefix for pin in self.named.values() for prefix, _ in pin.path}
        return self.held_by_leases() | named

    def held_by_leases(self) -> set[bytes]:
        """Return the cached prefixes that some hold of a lease protects."""
        paths = [hold.path for lease in self.leases.values() for _, hold in lease.pins.values()]
        paths += [r.path for lease in self.leases.values() for r in lease.reservations.values()]
        return {prefix for path in paths for prefix, _ in self.attached(path)}

    def reserved(self) -> set[Slot]:
        """Return all slots that some reservation holds unpublished."""
        return {
            slot
            for lease in self.leases.values()
            for reservation in lease.reservations.values()
            for slot in reservation.unpublished()
        }

    def detached(self) -> set[Slot]:
        """Return the slots that holds keep and the index has no more."""
        paths = [hold.path for lease in self.leases.values() for _, hold in lease.pins.values()]
        paths += [r.path for lease in self.leases.values() for r in lease.reservations.values()]
        slots = {slot for path in paths for _, slot in path}
        return slots - set(self.cached.values())

    def free_slots(self) -> set[Slot]:
        """Return the slots that nothing has."""
        every = {(e, i) for e, count in self.extents.items() for i in range(count)}
        return every - set(self.cached.values()) - self.reserved() - self.detached()

    def judge_eviction(self, cached_now: dict[bytes, Slot], needed: int) -> None:
        """Take over what an eviction left, after judging it."""
        gone = set(self.cached) - set(cached_now)
        assert len(gone) == needed, f"evicted {len(gone)} pages where {needed} were needed"
        assert not gone & self.held(), "a held page was evicted"
        for prefix, slot in cached_now.items():
            assert self.cached.get(prefix) == slot, "eviction changed a page"
            assert not any(len(p) < len(prefix) and prefix.startswith(p) for p in gone), (
                "a page was evicted before its continuation"
            )
        self.cached = dict(cached_now)

    def remove(self, prefix: bytes) -> int:
        """Remove a prefix's last page and all that continues it; return how many pages.

        Named pins that reach into what goes end.
        """
        gone = [each for each in self.cached if each.startswith(prefix)]
        for name, pin in list(self.named.items()):
            if {each for each, _ in pin.path}.intersection(gone):
                del self.named[name]
        for each in gone:
            del self.cached[each]
        return len(gone)

    def end(self, lease: ModelLease) -> None:
        """Forget a lease and all that it held."""
        del self.leases[lease.lease_id]
        self.ended.add(lease.lease_id)
