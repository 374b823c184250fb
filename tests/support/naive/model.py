"""The naive model of the cache: dictionaries of prefixes, no tree, no anchors.

A prefix is the bytes of a page and of all above it; the last page may be partial.
What the model can't know, which page an eviction policy prefers, it reads off the
cache and judges: nothing held may go, nothing may go without its continuations,
nothing more than was needed. Which of several pages that agree equally long a
sequence is copied from, it leaves to the cache too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from kvstore.core.values.requests import MatchOptions, Sequence
from naive.copies import FIRST, LOWER, Copies, Held, Path, Slot
from naive.disk import Disk
from naive.holds import Expected, ModelLease, ModelNamedPin

MARK = b"\xff" * 4


def marker(group: int, width: int) -> bytes:
    """Returns the tokens that stand for a page of a group."""
    return MARK + group.to_bytes(4, "little") + b"\xff" * (width - 8)


def is_marker(page: bytes) -> bool:
    """Returns whether a page's tokens stand for a page of a group."""
    return page.startswith(MARK)


@dataclass
class Model(Copies):
    """Everything cached and everything held."""

    width: int = field(kw_only=True)
    leases: dict[bytes, ModelLease] = field(default_factory=dict)
    named: dict[str, ModelNamedPin] = field(default_factory=dict)
    disk: Disk = field(default_factory=Disk)
    ended: set[bytes] = field(default_factory=set)
    extents: dict[int, int] = field(default_factory=dict)
    tiers: dict[int, int] = field(default_factory=dict)
    # Extents on their way out, and what each living process was given.
    retiring: set[int] = field(default_factory=set)
    given: dict[int, set[int]] = field(default_factory=dict)
    # What the last writer of a slot wrote into it.
    memory: dict[Slot, bytes] = field(default_factory=dict)
    # Next tokens by all the tokens that they follow.
    next_tokens: dict[bytes, int] = field(default_factory=dict)
    superseded: int = 0
    # What was published since the events were last looked at, still cached or not.
    published: set[bytes] = field(default_factory=set)

    @property
    def lasting(self) -> dict[int, int]:
        """The extents that are not on their way out."""
        return {each: n for each, n in self.extents.items() if each not in self.retiring}

    def lasting_in(self, tier: int) -> dict[int, int]:
        """Returns those of a tier."""
        return {each: n for each, n in self.lasting.items() if self.tiers[each] == tier}

    def prefixes(self, tokens: bytes) -> list[bytes]:
        """Returns the prefixes of whole pages of ``tokens``, shortest first."""
        pages = len(tokens) // self.width
        return [tokens[: (k + 1) * self.width] for k in range(pages)]

    def pages_of(self, tokens: bytes) -> list[bytes]:
        """Returns the prefixes of all pages of ``tokens``, the last perhaps partial."""
        whole = self.prefixes(tokens)
        return [*whole, tokens] if len(tokens) % self.width else whole

    def continuing(self, above: bytes) -> list[bytes]:
        """Returns the cached pages that follow the whole pages ``above``."""
        ends = range(len(above) + 1, len(above) + self.width + 1)
        return [each for each in self.cached if len(each) in ends and each.startswith(above)]

    def covering(self, tokens: bytes) -> list[bytes]:
        """Returns the cached pages that have the last of ``tokens`` and begin as they do."""
        above = tokens[: (len(tokens) - 1) // self.width * self.width]
        return [each for each in self.continuing(above) if each.startswith(tokens)]

    def nearest(self, above: bytes, rest: bytes) -> tuple[int, dict[Slot, bytes]]:
        """Returns for how many tokens a page after ``above`` agrees with ``rest``, and which do."""
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
        self, lease: ModelLease, sequence: Sequence, above: bytes, options: MatchOptions, path: Path
    ) -> Expected:
        """Returns what a match finds, whose whole pages are ``path``, as far as it may be used.

        ``above`` are the tokens before the sequence's position.
        """
        usable = lease.usable(self.lasting)
        tokens = above + sequence.tokens
        path = self.usable_path(path[: len(tokens) // self.width], usable)
        depth = len(tokens) // self.width
        tail = tokens[depth * self.width :]
        if options.accept_next_token and tokens in self.next_tokens and len(path) == depth:
            if not tail:
                return Expected(path, next_token=self.next_tokens[tokens])
            first = min(self.covering(tokens))
            slot = self.usable_copy(first, usable)
            if options.source_pin_id is not None and slot is not None:
                sources = {slot: first}
                return Expected(path, sources, len(tail) // 4, next_token=self.next_tokens[tokens])
        path = path[: max(len(tokens) - 4, 0) // self.width]
        start = len(path) * self.width
        if options.source_pin_id is None or start < len(above):
            return Expected(path)
        rest = tokens[start : min(start + self.width, len(tokens) - 4)]
        return self._sourced(path, tokens[:start], rest, usable)

    def usable_path(self, path: Path, usable: set[int]) -> Path:
        """Returns a path as far as the nearest copies in some extents go."""
        found: Path = []
        for prefix, _ in path:
            slot = self.usable_copy(prefix, usable)
            if slot is None:
                break
            found.append((prefix, slot))
        return found

    def _sourced(self, path: Path, above: bytes, rest: bytes, usable: set[int]) -> Expected:
        valid, sources = self.nearest(above, rest)
        copies = {self.usable_copy(page, usable): page for page in sources.values()}
        mapped = {slot: page for slot, page in copies.items() if slot is not None}
        if not mapped:
            return Expected(path)
        return Expected(path, mapped, valid, may_lack=len(mapped) < len(sources))

    def store_end(self, tokens: bytes, token: int) -> None:
        """Stores what follows ``tokens``, if they are cached; the first stays."""
        if tokens and self.covering(tokens):
            self.next_tokens.setdefault(tokens, token)

    def forget_ends(self) -> None:
        """Drops the next tokens of what is cached no more."""
        self.next_tokens = {
            each: token for each, token in self.next_tokens.items() if self.covering(each)
        }

    def publish(self, prefix: bytes, slot: Slot) -> None:
        """Caches a page that is not there; the partial page that it begins with goes."""
        above = prefix[: (len(prefix) - 1) // self.width * self.width]
        for each in self.continuing(above):
            if prefix.startswith(each):
                self.take_out([each], self.every_hold())
                self.superseded += 1
        self.first[prefix] = slot
        self.published.add(prefix)

    def paths(self) -> list[bytes]:
        """Returns the cached pages of paths, and not those of groups."""
        width = self.width
        ends = ((each, len(each) % width or width) for each in self.cached)
        return [each for each, last in ends if not is_marker(each[-last:])]

    def longest(self, tokens: bytes, pages: int) -> Path:
        """Returns the cached path of at most ``pages`` pages."""
        path: Path = []
        for prefix in self.prefixes(tokens)[:pages]:
            if prefix not in self.cached or is_marker(prefix[-self.width :]):
                break
            path.append((prefix, self.cached[prefix]))
        return path

    def fit(
        self, path: Path, windows: dict[int, int], start: int, extents: set[int]
    ) -> tuple[Path, dict[int, Path]]:
        """Returns the longest part of a path at whose end each group has its whole window.

        And the pages of these windows: each in the nearest copy in some extents.
        """
        for end in range(len(path), 0, -1):
            found: dict[int, Path] = {}
            for group, count in windows.items():
                first = max(end - count if count else 0, min(start, end))
                pages = [prefix + marker(group, self.width) for prefix, _ in path[first:end]]
                slots = [(page, self.usable_copy(page, extents)) for page in pages]
                found[group] = [(page, slot) for page, slot in slots if slot is not None]
                if len(found[group]) < end - first:
                    break
            else:
                return path[:end], found
        return [], {}

    def every_hold(self) -> list[Held]:
        """Returns all holds of leases, and what is under way between the tiers."""
        return [
            *(hold for lease in self.leases.values() for hold in lease.every_hold()),
            *self.moves.values(),
            *self.disk.writes.values(),
            *self.disk.reads.values(),
        ]

    def in_flight(
        self, tokens: bytes, depth: int, now: float, idle: float = inf
    ) -> tuple[int, set[float]]:
        """Returns through which page, after ``depth``, leases compute more of ``tokens``.

        And since when each that comes so far has not got on: ``idle`` seconds at most.
        """
        found: dict[int, set[float]] = {}
        most = max(len(tokens) - 4, 0) // self.width
        every = [lease for lease in self.leases.values() if not lease.expired]
        for each in (each for lease in every for each in lease.reservations.values()):
            asked, said = self.prefixes(tokens)[:most], self.prefixes(each.announced)
            agreed = sum(a == b for a, b in zip(asked, said, strict=False))
            age = now - each.advanced_at
            if agreed > depth == each.start + each.inserted and age <= idle:
                found.setdefault(agreed, set()).add(age)
        return max(found.items(), default=(0, set()))

    def held(self, tier: int) -> set[bytes]:
        """Returns the pages whose copies in a tier some hold protects, a lease's or a named one."""
        paths = [hold.path for hold in self.every_hold()]
        return self.held_in([*paths, *(pin.path for pin in self.named.values())], tier)

    def held_by_leases(self) -> set[bytes]:
        """Returns the cached prefixes that some hold of a lease, or a move, protects."""
        paths = [hold.path for hold in self.every_hold()]
        return {prefix for path in paths for prefix, _ in self.attached(path)}

    def reserved(self) -> set[Slot]:
        """Returns all slots that some reservation holds unpublished."""
        return {
            slot
            for lease in self.leases.values()
            for reservation in lease.reservations.values()
            for slot in reservation.unpublished()
        }

    def detached(self) -> set[Slot]:
        """Returns the slots that holds keep and the index has no more."""
        return {slot for hold in self.every_hold() for slot in hold.kept}

    def targets(self) -> set[Slot]:
        """Returns the slots that moves and loads under way fill."""
        targets = {target for move in self.moves.values() for _, _, target in move.pages}
        return targets | {slot for load in self.disk.reads.values() for _, slot in load.pages}

    def free_slots(self, tier: int = FIRST, *, retiring: bool = False) -> set[Slot]:
        """Returns the slots that nothing has, of a tier's lasting extents or of any that retire."""
        extents = self.retiring if retiring else self.lasting_in(tier)
        every = {(e, i) for e in extents for i in range(self.extents[e])}
        cached = {*self.first.values(), *self.lower.values()}
        return every - cached - self.reserved() - self.detached() - self.targets()

    def judge_eviction(self, read: Callable[[int], dict[bytes, Slot]], needed: int) -> None:
        """Takes over what an eviction in tier 1 left, after judging it; ``read`` reads a tier."""
        gone = self.judge_dropped(read(FIRST), FIRST, self.held(FIRST))
        assert len(gone) == needed, f"evicted {len(gone)} pages where {needed} were needed"
        assert read(LOWER) == self.lower, "an eviction in tier 1 changed tier 2"
        self.forget_ends()

    def remove(self, prefix: bytes) -> int:
        """Removes a prefix's last page and all that continues it; returns how many pages."""
        gone = {each for each in self.cached if each.startswith(prefix)}
        self.remove_pages(gone)
        return len(gone)

    def remove_pages(self, gone: set[bytes]) -> None:
        """Removes pages and all that continue them, and ends named pins that reach into them."""
        for name, pin in list(self.named.items()):
            if gone.intersection(each for each, _ in pin.path):
                del self.named[name]
        self.take_out(gone, self.every_hold())
        self.forget_ends()

    def retired(self) -> set[bytes]:
        """Returns the cached pages of extents that retire, and all that continues them."""
        every = [*self.first.items(), *self.lower.items()]
        tops = tuple(prefix for prefix, slot in every if slot[0] in self.retiring)
        return {each for each in self.cached if each.startswith(tops)}

    def expel(self) -> int:
        """Removes the pages of extents that retire at once; returns how many pages went."""
        gone = self.retired()
        self.remove_pages(gone)
        return len(gone)

    def end(self, lease: ModelLease) -> None:
        """Forgets a lease and all that it held."""
        del self.leases[lease.lease_id]
        self.ended.add(lease.lease_id)
