"""A store of whole pages that fits in the head, behind the questions that a connector asks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore_client import DatedRun
from kvstore_vllm.scheduler.step_operations import AcquirePages, ReleasePages, StoreOperation

Prefix = tuple[int, ...]


@dataclass
class NaivePlaces:
    """Slots, as the client's ``Pages`` has them."""

    slots: list[int]

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def dated_runs(self) -> list[DatedRun]:
        """Two runs, as answers may have several."""
        half = len(self.slots) // 2
        parts = [self.slots[:half], self.slots[half:]]
        return [DatedRun(0, part, (0,) * len(part)) for part in parts if part]


@dataclass(eq=False)
class NaiveMatch:
    """A pinned prefix."""

    store: "NaivePages"
    prefix: Prefix = ()
    slots: list[int] = field(default_factory=list)
    failure: object = None
    in_flight: object = None

    @property
    def pages(self) -> NaivePlaces:
        """The slots of its pages."""
        return NaivePlaces(self.slots)

    @property
    def page_count(self) -> int:
        """The number of its pages."""
        return len(self.slots)

    @property
    def page_tiers(self) -> list[int]:
        """The tier of each page: memory, and the disk for the last ones that it had alone."""
        in_memory = len(self.slots) - min(self.store.on_disk, len(self.slots))
        return [1] * in_memory + [3] * (len(self.slots) - in_memory)

    @property
    def token_count(self) -> int:
        """The number of its tokens."""
        return len(self.prefix)

    def release(self) -> None:
        """Gives it back, once."""
        if self in self.store.holds:
            self.store.holds.remove(self)
            self.store.pins.subtract(self.slots)


@dataclass(eq=False)
class NaiveReservation:
    """Slots to write."""

    start_page: int
    slots: list[int]

    @property
    def pages(self) -> NaivePlaces:
        """The slots of its pages."""
        return NaivePlaces(self.slots)

    @property
    def page_count(self) -> int:
        """The number of its pages."""
        return len(self.slots)


@dataclass(eq=False)
class NaiveAcquired:
    """A match and slots for the rest."""

    store: "NaivePages"
    match: NaiveMatch
    reservation: NaiveReservation | None = None
    in_flight: object = None
    failure: object = None
    released: bool = False
    published: list[int] = field(default_factory=list)

    def release(self) -> None:
        """Gives both back, once; what was inserted stays."""
        self.match.release()
        if self.reservation is not None and not self.released:
            self.store.reserved.difference_update({*self.reservation.slots} - {*self.published})
            self.store.pins.subtract(self.published)
        self.released = True


class NaivePages:
    """Slots with what was written to them, and an index by every prefix.

    ``contents`` of a slot is the prefix whose last page's KV is there, as the engine that wrote
    it says; a page is published under what its writer asked for, which has to be the same.
    """

    def __init__(self, page_tokens: int, slot_count: int) -> None:
        self.page_tokens = page_tokens
        self.contents: dict[int, Prefix | None] = dict.fromkeys(range(slot_count))
        self.index: dict[Prefix, int] = {}
        self.pins: Counter[int] = Counter()
        self.holds: list[NaiveMatch] = []
        self.reserved: set[int] = set()
        self.down = False
        self.someone_else_saves = False
        # The calls that had operations of a step.
        self.steps = 0
        # The hints of the inserts so far.
        self.hints: list[object] = []
        # The number of each match's last pages that come from a disk.
        self.on_disk = 0

    def look_up(
        self, key: object, token_ids: Sequence[int], groups: Sequence[object] = ()
    ) -> NaiveMatch:
        """Pins the longest prefix; a store that is down pins nothing."""
        del key, groups
        if self.down:
            return NaiveMatch(self, failure="the store is down")
        return self._match(tuple(token_ids))

    def run_step(self, operations: Sequence[StoreOperation]) -> list[Any]:
        """Makes the operations of a step, one after the other."""
        self.steps += 1
        return [self._run(each) for each in operations]

    def _run(self, operation: StoreOperation) -> object:
        each: Any = operation
        if isinstance(operation, AcquirePages):
            return self.acquire(each.key, each.token_ids, yielding=each.yielding)
        if isinstance(operation, ReleasePages):
            return each.held.release()
        return self.insert(each.key, each.token_ids, each.acquired, each.start, each.end, each.hint)

    def acquire(
        self, key: object, token_ids: Sequence[int], *, yielding: bool
    ) -> NaiveAcquired | None:
        """Pins the longest prefix, and reserves as many of the missing pages as there are slots."""
        del key
        if self.down:
            return None
        if yielding and self.someone_else_saves:
            return NaiveAcquired(self, NaiveMatch(self), in_flight=object())
        match = self._match(tuple(token_ids))
        wanted = len(token_ids) // self.page_tokens - match.page_count
        slots = [slot for _ in range(wanted) if (slot := self._free_slot()) is not None]
        reservation = NaiveReservation(match.page_count, slots) if slots or not wanted else None
        return NaiveAcquired(self, match, reservation)

    def insert(
        self,
        key: object,
        token_ids: Sequence[int],
        acquired: NaiveAcquired,
        start: int,
        end: int,
        hint: object = None,
    ) -> bool:
        """Publishes; a page that is there already stays."""
        del key
        self.hints.append(hint)
        assert not acquired.released
        reservation = acquired.reservation
        assert reservation is not None
        if self.down:
            return False
        for page in range(start, end):
            prefix = tuple(token_ids[: (page + 1) * self.page_tokens])
            slot = reservation.slots[page - reservation.start_page]
            assert self.contents[slot] == prefix, "another page's KV would be served"
            if prefix not in self.index:
                self.index[prefix] = slot
                self.reserved.discard(slot)
                # By inserting a reservation holds the path.
                acquired.published.append(slot)
                self.pins[slot] += 1
        return True

    def write(self, slot: int, content: Prefix | None) -> None:
        """Takes a writer's page; only what is reserved may be written."""
        assert slot in self.reserved, "a slot that is not ours is written"
        self.contents[slot] = content

    def read(self, slot: int) -> Prefix | None:
        """Returns a page's KV; only what is pinned may be read."""
        assert self.pins[slot] > 0, "a slot that is not pinned is read"
        return self.contents[slot]

    def _match(self, tokens: Prefix) -> NaiveMatch:
        match = NaiveMatch(self)
        for end in range(self.page_tokens, len(tokens) + 1, self.page_tokens):
            if tokens[:end] not in self.index:
                break
            match.prefix = tokens[:end]
            match.slots.append(self.index[tokens[:end]])
        self.pins.update(match.slots)
        if match.slots:
            self.holds.append(match)
        return match

    def _free_slot(self) -> int | None:
        used = {*self.index.values(), *self.reserved}
        for slot in self.contents:
            if slot not in used:
                self.reserved.add(slot)
                return slot
        return self._evict()

    def _evict(self) -> int | None:
        for prefix, slot in list(self.index.items()):
            has_child = any(
                len(other) > len(prefix) and other[: len(prefix)] == prefix for other in self.index
            )
            if not self.pins[slot] and not has_child:
                del self.index[prefix]
                self.contents[slot] = None
                self.reserved.add(slot)
                return slot
        return None
