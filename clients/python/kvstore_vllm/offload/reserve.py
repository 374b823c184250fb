"""Slots that are reserved ahead, because vLLM needs the place of a block at once."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kvstore_client import PageRef
from kvstore_vllm.scheduler.store_threads import Answers

# The least number of slots that one call reserves.
LEAST_SLOTS: Final = 16
# Seconds until the store is asked again after it had no slots.
AFTER_REFUSAL: Final = 0.5


class SpareBatch(Protocol):
    """Slots of one call, none of which has a page yet."""

    @property
    def usable(self) -> bool:
        """False once the session ended, so that nothing of it can be published."""

    def pages(self) -> list[tuple[int, PageRef]]:
        """Returns the offset and the place of each slot."""

    def abort(self) -> None:
        """Gives the slots back that no page has taken."""


@dataclass(eq=False, slots=True)
class SlotBatch:
    """A batch, and how many of its slots are not used up yet."""

    slots: SpareBatch
    left: int = 0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Spare:
    """One reserved slot, by its offset in a batch."""

    batch: SlotBatch = field(repr=False)
    offset: int
    page: PageRef


# Reserves about as many slots, or returns None. Runs on a thread that may wait.
Fill = Callable[[int], SpareBatch | None]


class Reserve:
    """The spare slots of one namespace, at most ``most``. One thread uses it.

    Slots are reserved by threads as requests need them. Those of an ended session are dropped.
    A slot that was taken is given back or used up; a batch ends with its last slot.
    """

    def __init__(
        self,
        fill: Fill,
        answers: Answers,
        most: int,
        wait: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A step waits ``wait`` seconds at most for slots that are under way."""
        self._fill = fill
        self._answers = answers
        self._most = most
        self._wait = wait
        self._clock = clock
        self._free: deque[Spare] = deque()
        self._batches: list[SlotBatch] = []
        self._coming = 0
        self._not_before = 0.0
        self._waited = False

    @property
    def is_coming(self) -> bool:
        """True while slots are under way."""
        return self._coming > 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is reserved or under way."""
        return not self._batches and not self._coming

    def want(self, count: int) -> None:
        """Reserves more slots in the background if fewer than ``count`` are free."""
        missing = min(count, self._most) - len(self._free)
        if missing <= 0 or self._coming or self._clock() < self._not_before:
            return
        missing = max(missing, min(LEAST_SLOTS, self._most))
        self._coming = missing
        self._answers.ask(partial(self._fill, missing), self._filled)

    def take(self, count: int) -> list[Spare]:
        """Returns up to ``count`` slots. Waits a little if they are under way, once an answer."""
        self.drop_ended()
        if len(self._free) < count:
            self.want(count)
            self._await()
        return [self._free.popleft() for _ in range(min(count, len(self._free)))]

    def give_back(self, spares: Iterable[Spare]) -> None:
        """Takes slots back that nobody writes and that have no page."""
        for spare in spares:
            if spare.batch.closed or not spare.batch.slots.usable:
                self._used_one(spare.batch)
            else:
                self._free.appendleft(spare)

    def used(self, spares: Iterable[Spare]) -> None:
        """Notes that slots are used up: by pages, or by a publication that failed."""
        for spare in spares:
            self._used_one(spare.batch)

    def close(self) -> None:
        """Gives back all free slots. Those that are taken follow as they are given back."""
        free, self._free = self._free, deque()
        for batch in self._batches:
            batch.closed = True
        self.used(free)

    def drop_ended(self) -> bool:
        """Drops free slots of ended sessions; returns whether others of them are taken.

        The client attaches again only after all of them are dropped.
        """
        if all(batch.slots.usable for batch in self._batches):
            return False
        ended = [spare for spare in self._free if not spare.batch.slots.usable]
        self._free = deque(spare for spare in self._free if spare.batch.slots.usable)
        self.used(ended)
        return not all(batch.slots.usable for batch in self._batches)

    def _await(self) -> None:
        """Waits for the slots under way, unless a step has waited for them before."""
        if self._waited:
            return
        until = self._clock() + self._wait
        while self._coming and (left := until - self._clock()) > 0:
            self._answers.wait(left)
            self._answers.deliver()
        # A store that hangs would otherwise hold up a step once for each of its requests.
        self._waited = self._coming > 0

    def _used_one(self, batch: SlotBatch) -> None:
        batch.left -= 1
        if not batch.left:
            self._batches.remove(batch)
            batch.slots.abort()

    def _filled(self, slots: SpareBatch | None) -> None:
        self._coming = 0
        self._waited = False
        if slots is None:
            self._not_before = self._clock() + AFTER_REFUSAL
            return
        batch = SlotBatch(slots)
        found = [Spare(batch, offset, page) for offset, page in slots.pages()]
        batch.left = len(found)
        self._batches.append(batch)
        self._free.extend(found)
