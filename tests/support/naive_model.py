"""The naive model of the cache: dictionaries of prefixes, no tree, no anchors.

A prefix is the bytes of a page and of all above it; the last page may be partial.
What the model can't know, which page an eviction policy prefers, it reads off the
cache and judges: nothing held may go, nothing may go without its continuations,
nothing more than was needed. Which of several pages that agree equally long a
sequence is copied from, it leaves to the cache too.
"""

from dataclasses import dataclass, field
from itertools import takewhile

from kvstore.core.requests import Match, MatchWishes, Sequence

Slot = tuple[int, int]
Path = list[tuple[bytes, Slot]]


@dataclass
class ModelHold:
    """A path that may not be recycled: prefixes and the slots that held them."""

    path: Path


@dataclass
class ModelPin(ModelHold):
    """A match: what was asked, and what it answered besides its path."""

    sequence: Sequence
    wishes: MatchWishes
    match: Match


@dataclass
class Expected:
    """What a match has to find.

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
    page may be partial.
    """

    start: int
    slots: list[Slot]
    own: list[bool]
    inserted: int = 0
    tokens: bytes = b""
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
    pins: dict[int, ModelPin] = field(default_factory=dict)
    sources: dict[int, ModelHold] = field(default_factory=dict)
    reservations: dict[int, ModelReservation] = field(default_factory=dict)
    dead_pins: set[int] = field(default_factory=set)
    dead_reservations: set[int] = field(default_factory=set)

    def holds(self) -> list[Path]:
        """Return all paths that it holds."""
        holds = [*self.pins.values(), *self.sources.values(), *self.reservations.values()]
        return [hold.path for hold in holds]

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
    # Extents on their way out, and what each living process was given.
    retiring: set[int] = field(default_factory=set)
    given: dict[int, set[int]] = field(default_factory=dict)
    # What the last writer of a slot wrote into it.
    memory: dict[Slot, bytes] = field(default_factory=dict)
    # Next tokens by all the tokens that they follow.
    ends: dict[bytes, int] = field(default_factory=dict)
    superseded: int = 0

    @property
    def lasting(self) -> dict[int, int]:
        """The extents that are not on their way out."""
        return {each: n for each, n in self.extents.items() if each not in self.retiring}

    def prefixes(self, tokens: bytes) -> list[bytes]:
        """Return the prefixes of whole pages of ``tokens``, shortest first."""
        pages = len(tokens) // self.width
        return [tokens[: (k + 1) * self.width] for k in range(pages)]

    def pages_of(self, tokens: bytes) -> list[bytes]:
        """Return the prefixes of all pages of ``tokens``, the last perhaps partial."""
        whole = self.prefixes(tokens)
        return [*whole, tokens] if len(tokens) % self.width else whole

    def continuing(self, above: bytes) -> list[bytes]:
        """Return the cached pages that follow the whole pages ``above``."""
        ends = range(len(above) + 1, len(above) + self.width + 1)
        return [each for each in self.cached if len(each) in ends and each.startswith(above)]

    def covering(self, tokens: bytes) -> list[bytes]:
        """Return the cached pages that have the last of ``tokens`` and begin as they do."""
        above = tokens[: (len(tokens) - 1) // self.width * self.width]
        return [each for each in self.continuing(above) if each.startswith(tokens)]

    def nearest(self, above: bytes, rest: bytes) -> tuple[int, dict[Slot, bytes]]:
        """Return for how many tokens a page after ``above`` agrees with ``rest``, and which do."""
        best: tuple[int, dict[Slot, bytes]] = (0, {})
        for each in self.continuing(above):
            pairs = zip(each[len(above) :: 4], rest[::4], strict=False)
            agreeing = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
            if len(agreeing) > best[0]:
                best = (len(agreeing), {})
            if agreeing and len(agreeing) == best[0]:
                best[1][self.cached[each]] = each
        return best

    def expect(
        self, lease: ModelLease, sequence: Sequence, above: bytes, wishes: MatchWishes, path: Path
    ) -> Expected:
        """Return what a match finds, whose whole pages are ``path``, as far as it may be used.

        ``above`` are the tokens before the sequence's position.
        """
        usable = lease.usable(self.lasting)
        tokens = above + sequence.tokens
        path = list(takewhile(lambda page: page[1][0] in usable, path[: len(tokens) // self.width]))
        depth = len(tokens) // self.width
        tail = tokens[depth * self.width :]
        if wishes.accept_next_token and tokens in self.ends and len(path) == depth:
            if not tail:
                return Expected(path, next_token=self.ends[tokens])
            first = min(self.covering(tokens))
            if wishes.source_pin_id is not None and self.cached[first][0] in usable:
                sources = {self.cached[first]: first}
                return Expected(path, sources, len(tail) // 4, next_token=self.ends[tokens])
        path = path[: max(len(tokens) - 4, 0) // self.width]
        start = len(path) * self.width
        if wishes.source_pin_id is None or start < len(above):
            return Expected(path)
        rest = tokens[start : min(start + self.width, len(tokens) - 4)]
        return self._sourced(path, tokens[:start], rest, usable)

    def _sourced(self, path: Path, above: bytes, rest: bytes, usable: set[int]) -> Expected:
        valid, sources = self.nearest(above, rest)
        mapped = {slot: page for slot, page in sources.items() if slot[0] in usable}
        if not mapped:
            return Expected(path)
        return Expected(path, mapped, valid, may_lack=len(mapped) < len(sources))

    def store_end(self, tokens: bytes, token: int) -> None:
        """Store what follows ``tokens``, if they are cached; the first stays."""
        if tokens and self.covering(tokens):
            self.ends.setdefault(tokens, token)

    def forget_ends(self) -> None:
        """Drop the next tokens of what is cached no more."""
        self.ends = {each: token for each, token in self.ends.items() if self.covering(each)}

    def publish(self, prefix: bytes, slot: Slot) -> None:
        """Cache a page that is not there; the partial page that it begins with goes."""
        above = prefix[: (len(prefix) - 1) // self.width * self.width]
        for each in self.continuing(above):
            if prefix.startswith(each):
                del self.cached[each]
                self.superseded += 1
        self.cached[prefix] = slot

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
        paths = [path for lease in self.leases.values() for path in lease.holds()]
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
        paths = [path for lease in self.leases.values() for path in lease.holds()]
        slots = {slot for path in paths for _, slot in path}
        return slots - set(self.cached.values())

    def free_slots(self, *, retiring: bool = False) -> set[Slot]:
        """Return the slots that nothing has, of lasting extents or of those that retire."""
        extents = self.retiring if retiring else self.lasting
        every = {(e, i) for e in extents for i in range(self.extents[e])}
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
        self.forget_ends()

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
        self.forget_ends()
        return len(gone)

    def expel(self) -> int:
        """Remove the pages of extents that retire; return how many pages went."""
        gone = [prefix for prefix, slot in self.cached.items() if slot[0] in self.retiring]
        return sum(self.remove(prefix) for prefix in sorted(gone))

    def end(self, lease: ModelLease) -> None:
        """Forget a lease and all that it held."""
        del self.leases[lease.lease_id]
        self.ended.add(lease.lease_id)
