"""Loads: from queued pages of requests until each layer is in the device pool."""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from kvstore_client import Match, PageRef
from kvstore_client.engines.counters import count_loaded
from kvstore_client.errors import StoreError
from kvstore_sglang.engine.component_pages import ComponentPages
from kvstore_sglang.transfers.page_copies import PageCopies, PageTransfer

_logger = logging.getLogger(__name__)

MICROSECONDS: Final = 1e6


class LayerCounter(Protocol):
    """SGLang's ``LayerWiseLoadCounter``: a forward waits on it for each layer of a batch."""

    def update_producer(self) -> int:
        """Returns the index of a new batch."""

    def complete(self, index: int, layer: int) -> None:
        """Notes that a layer of a batch landed."""

    def fail(self, index: int, error: BaseException) -> None:
        """Notes that the other layers of a batch will not land."""

    def finish(self, index: int) -> bool:
        """Waits for a batch, and returns whether all layers landed."""

    def reset(self) -> None:
        """Forgets all batches."""


class LoadFailed(RuntimeError):
    """Pages that a lookup promised did not land; SGLang ends their requests with 503."""


class ComponentLoad(NamedTuple):
    """Pages of one component, from ``first_page`` of the sequence on, into slots of its pool."""

    component: ComponentPages
    first_page: int
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class QueuedLoad:
    """A request's load: ``page_count`` pages of a match from ``first_page`` on, into slots.

    ``loads`` has the pages of each component. ``match`` is None if the pages are not held any
    more, and the load fails.
    """

    match: Match | None
    first_page: int
    page_count: int
    loads: tuple[ComponentLoad, ...]

    @property
    def pages(self) -> slice:
        """The loaded pages of the match."""
        return slice(self.first_page, self.first_page + self.page_count)


class _Copied(NamedTuple):
    """The bytes of a batch, and the seconds that it took."""

    byte_count: int
    seconds: float


class Loads:
    """Loads requests' pages in batches, layer by layer on a thread.

    The scheduler's thread uses it. SGLang lets the batch's forward wait for each layer, and asks
    with :meth:`finish` after it whether all landed. Matches are released then. ``fault_fraction``
    of the batches fail on purpose, for tests.
    """

    def __init__(
        self,
        copies: PageCopies,
        counter: LayerCounter,
        layer_count: int,
        page_tokens: int,
        counts: "Counter[str]",
        *,
        fault_fraction: float = 0.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._copies = copies
        self._counter = counter
        self._layer_count = layer_count
        self._page_tokens = page_tokens
        self._counts = counts
        self._fault_fraction = fault_fraction
        self._chance = chance
        self._queued: dict[str, QueuedLoad] = {}
        self._started: dict[int, tuple[list[QueuedLoad], Future[_Copied]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-sglang-load")

    def queue(self, rid: str, load: QueuedLoad) -> None:
        """Adds a request's load to the next batch."""
        self._queued[rid] = load

    def cancel(self, rid: str) -> bool:
        """Takes a load out that has not started, and releases its pages; False if it has."""
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        _release(load)
        return True

    def start(self, events: Sequence[torch.cuda.Event] = ()) -> int:
        """Starts the queued loads, after some events of the device; returns the batch's index.

        Returns -1 if nothing is queued.
        """
        if not self._queued:
            return -1
        batch = list(self._queued.values())
        self._queued = {}
        index = self._counter.update_producer()
        copied = self._thread.submit(self._run, index, batch, events)
        self._started[index] = batch, copied
        return index

    def finish(self, index: int) -> bool:
        """Waits for a batch and releases its pages; returns whether all layers landed."""
        if index not in self._started:
            return True
        batch, future = self._started.pop(index)
        # In this order: the thread completes layers that no forward waited for.
        copied = future.result()
        landed = self._counter.finish(index)
        self._counts["load_bytes"] += copied.byte_count
        self._counts["load_microseconds"] += round(copied.seconds * MICROSECONDS)
        for load in batch:
            if landed and load.match is not None:
                tiers = Counter(load.match.page_tiers[load.pages])
                count_loaded(self._counts, tiers, self._page_tokens)
            self._counts["loads_failed"] += not landed
            _release(load)
        return landed

    def reset(self) -> None:
        """Waits for started batches, and drops all loads."""
        for index in list(self._started):
            self.finish(index)
        for rid in list(self._queued):
            self.cancel(rid)
        self._counter.reset()

    def close(self) -> None:
        """Waits for started batches, drops all loads, and ends the thread."""
        self.reset()
        self._thread.shutdown()

    def _run(
        self, index: int, batch: list[QueuedLoad], events: Sequence[torch.cuda.Event]
    ) -> _Copied:
        """Loads a batch, on the thread."""
        begin = time.monotonic()
        byte_count = 0
        try:
            if self._fault_fraction and self._chance() < self._fault_fraction:
                raise LoadFailed("this load was made to fail, by fault_load_fraction")  # noqa: TRY301
            transfers = [each for load in batch for each in self._transfers(load, events)]
            for layer in range(self._layer_count):
                byte_count += sum(self._copies.load_layer(each, layer) for each in transfers)
                if layer == self._layer_count - 1:
                    _require_current(batch)
                self._counter.complete(index, layer)
        except BaseException as error:  # noqa: BLE001  # the forward waits for this batch
            _logger.error("load_failed", extra={"reason": repr(error)})  # noqa: TRY400
            self._counter.fail(index, error)
        return _Copied(byte_count, time.monotonic() - begin)

    def _transfers(
        self, load: QueuedLoad, events: Sequence[torch.cuda.Event]
    ) -> list[PageTransfer]:
        if load.match is None:
            raise LoadFailed("the pages are not held any more")
        found = []
        for component, first_page, slots in load.loads:
            count = component.page_count(slots)
            parts = [
                _matched_pages(load.match, group, first_page, count) for group in component.groups
            ]
            found.append(self._copies.transfer(component, slots, parts, events))
        return found


def _matched_pages(match: Match, group: int, first_page: int, count: int) -> Sequence[PageRef]:
    """Returns pages of a match's group; group 0 is the path.

    Raises ``LoadFailed`` if the match lacks one.
    """
    start, pages = match.groups[group] if group else (0, match.pages)
    first = first_page - start
    if first < 0 or first + count > len(pages):
        raise LoadFailed(
            f"pages {first_page} to {first_page + count} of group {group} were asked for, and "
            f"{start} to {start + len(pages)} are held"
        )
    return pages[first : first + count]


def _require_current(batch: Sequence[QueuedLoad]) -> None:
    """Raises ``StoreError`` if the store reused a slot while it was copied."""
    for load in batch:
        if load.match is not None:
            load.match.require_current()


def _release(load: QueuedLoad) -> None:
    if load.match is not None:
        try:
            load.match.release()
        except StoreError as error:
            _logger.debug("not_released", extra={"reason": str(error)})
