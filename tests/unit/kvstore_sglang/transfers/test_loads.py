"""Loads of requests' pages, layer by layer on a thread."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest
import torch

from kvstore_client import PageRef
from kvstore_client.errors import PageRecycled, StoreUnavailable
from kvstore_client.values.kv_cache_groups import GroupPages
from kvstore_sglang.engine.component_pages import ComponentPages
from kvstore_sglang.transfers.loads import ComponentLoad, Loads, QueuedLoad
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.pools import PAGE, plain_pages, plain_pool, slots_of, window_pages, window_pool

LAYERS = 3
PATH = plain_pages(plain_pool(1)).path
[WINDOWS] = window_pages(window_pool(1)).others.values()


@dataclass(eq=False)
class Pinned:
    """The part of a ``Match`` that is used."""

    pages: Sequence[PageRef]
    groups: dict[int, GroupPages] = field(default_factory=dict)
    recycled: bool = False
    releases: int = 0
    release_error: Exception | None = None

    @property
    def page_tiers(self) -> list[int]:
        """The tiers of its pages: the last is of the disk."""
        return [1] * (len(self.pages) - 1) + [3]

    def require_current(self) -> None:
        """Raises if a slot was reused."""
        if self.recycled:
            raise PageRecycled(self.pages)

    def release(self) -> None:
        """Counts releases."""
        self.releases += 1
        if self.release_error is not None:
            raise self.release_error


@dataclass
class Copies:
    """Copies that note what they copied, and wait at a layer."""

    copied: list[tuple[int, object]] = field(default_factory=list)
    waited: list[object] = field(default_factory=list)
    unmapped: bool = False
    stop_before: int = LAYERS
    may_go_on: Event = field(default_factory=Event)

    def transfer(
        self,
        component: ComponentPages,
        slots: torch.Tensor,
        parts: Sequence[Sequence[PageRef]],
        events: Sequence[object],
    ) -> object:
        """Returns what is copied, and notes events."""
        if self.unmapped:
            raise KeyError(7)
        self.waited += events
        numbers = component.page_numbers(slots)
        return tuple(each for pages in parts for each in zip(numbers, pages, strict=True))

    def load_layer(self, transfer: object, layer: int) -> int:
        """Notes a copy."""
        if layer == self.stop_before:
            assert self.may_go_on.wait(30)
        self.copied.append((layer, transfer))
        return 100


@pytest.fixture
def copies() -> Copies:
    """Provides the copies."""
    return Copies()


@pytest.fixture
def counts() -> "Counter[str]":
    """Provides the counts."""
    return Counter()


@pytest.fixture
def counter() -> LayerWiseLoadCounter:
    """Provides the counter."""
    return LayerWiseLoadCounter(LAYERS)


@pytest.fixture
def loads(
    copies: Any,  # noqa: ANN401
    counter: LayerWiseLoadCounter,
    counts: "Counter[str]",
) -> Iterator[Loads]:
    """Provides loads with their thread."""
    made = Loads(copies, counter, LAYERS, PAGE, counts)
    yield made
    copies.may_go_on.set()
    made.close()


def pinned(count: int = 4) -> Any:  # noqa: ANN401
    """Returns a match of some pages."""
    return Pinned([PageRef(1, slot) for slot in range(count)])


def queued(match: Any, first_page: int, numbers: Sequence[int]) -> QueuedLoad:  # noqa: ANN401
    """Returns the load of some pages into pages of the pool."""
    path = ComponentLoad(PATH, first_page, slots_of(numbers))
    return QueuedLoad(match, first_page, len(numbers), (path,))


def test_a_batch_lands_layer_by_layer(
    loads: Loads, copies: Copies, counter: LayerWiseLoadCounter, counts: "Counter[str]"
) -> None:
    """The forward may use a layer before the next one is copied; pages are held to the end."""
    copies.stop_before = 1
    match, other = pinned(), pinned(2)
    loads.queue("a", queued(match, 2, [5, 6]))
    loads.queue("b", queued(other, 1, [9]))
    index = loads.start(events=["allocated"])  # type: ignore[list-item]
    assert counter.futures[index][0].result(30) is None
    assert not counter.futures[index][1].done()
    assert (match.releases, other.releases) == (0, 0)
    copies.may_go_on.set()
    assert loads.finish(index)
    assert (match.releases, other.releases) == (1, 1)
    first = ((5, PageRef(1, 2)), (6, PageRef(1, 3)))
    second = ((9, PageRef(1, 1)),)
    assert copies.copied == [(n, each) for n in range(LAYERS) for each in (first, second)]
    assert copies.waited == ["allocated"] * 2
    loads.reset()
    assert counts["loaded_tokens_1"] == PAGE
    assert counts["loaded_tokens_3"] == 2 * PAGE
    assert counts["loads_failed"] == 0


def test_nothing_queued_is_no_batch(loads: Loads) -> None:
    """SGLang gets -1, for which no forward waits."""
    assert loads.start() == -1


def test_a_queued_load_can_be_cancelled_and_a_started_one_cannot(loads: Loads) -> None:
    """A cancelled load releases its pages and is not copied."""
    match, other = pinned(), pinned()
    loads.queue("a", queued(match, 0, [1]))
    loads.queue("b", queued(other, 0, [2]))
    assert loads.cancel("a")
    assert not loads.cancel("a")
    index = loads.start()
    assert not loads.cancel("b")
    assert loads.finish(index)
    assert (match.releases, other.releases) == (1, 1)


@pytest.mark.parametrize("fault", ["unmapped", "recycled", "not held"])
def test_pages_that_do_not_land_fail_their_batch(
    fault: str, loads: Loads, copies: Copies, counts: "Counter[str]"
) -> None:
    """SGLang ends the requests; the pages are released all the same, and the next batch lands."""
    copies.unmapped = fault == "unmapped"
    match = pinned()
    match.recycled = fault == "recycled"
    loads.queue("a", queued(None if fault == "not held" else match, 0, [1]))
    assert not loads.finish(loads.start())
    assert counts["loads_failed"] == 1
    assert counts["loaded_tokens_1"] == 0
    assert match.releases == (fault != "not held")
    copies.unmapped = False
    loads.queue("b", queued(pinned(), 0, [1]))
    assert loads.finish(loads.start())


def test_the_pages_of_windows_land_with_the_path(loads: Loads, copies: Copies) -> None:
    """Each part comes from the group's own pages, which begin where the window does."""
    match = pinned(4)
    for group in WINDOWS.groups:
        places = [PageRef(2, 10 * group + number) for number in range(2)]
        match.groups[group] = GroupPages(2, places)  # type: ignore[arg-type]
    path = ComponentLoad(PATH, 1, slots_of([4, 5, 6]))
    windows = ComponentLoad(WINDOWS, 3, slots_of([8]))
    loads.queue("a", QueuedLoad(match, 1, 3, (path, windows)))
    assert loads.finish(loads.start())
    expected = tuple((8, PageRef(2, 10 * group + 1)) for group in WINDOWS.groups)
    assert copies.copied[1] == (0, expected)


@pytest.mark.parametrize("first_page", [1, 3])
def test_a_window_that_the_match_lacks_fails_its_load(first_page: int, loads: Loads) -> None:
    """Nothing is loaded from a page before or after those that are held."""
    match = pinned(4)
    match.groups |= {group: GroupPages(2, [PageRef(2, 0)]) for group in WINDOWS.groups}  # type: ignore[arg-type]
    windows = ComponentLoad(WINDOWS, first_page, slots_of([8]))
    loads.queue("a", QueuedLoad(match, 0, 4, (windows,)))
    assert not loads.finish(loads.start())
    assert match.releases == 1


def test_a_share_of_loads_fails_on_purpose(
    copies: Any,  # noqa: ANN401
    counter: LayerWiseLoadCounter,
    counts: "Counter[str]",
) -> None:
    """Only tests set the share."""
    draws = iter([0.2, 0.8])
    loads = Loads(
        copies, counter, LAYERS, PAGE, counts, fault_fraction=0.5, chance=lambda: next(draws)
    )
    landed = []
    for _ in range(2):
        loads.queue("a", queued(pinned(), 0, [1]))
        landed.append(loads.finish(loads.start()))
    assert landed == [False, True]
    loads.close()


def test_a_reset_waits_for_started_loads_and_drops_queued_ones(
    loads: Loads, copies: Copies, counter: LayerWiseLoadCounter
) -> None:
    """After a reset nothing writes the pool, and no page is held."""
    match, other = pinned(), pinned()
    loads.queue("a", queued(match, 0, [1]))
    loads.start()
    loads.queue("b", queued(other, 0, [2]))
    loads.reset()
    assert (match.releases, other.releases) == (1, 1)
    assert len(copies.copied) == LAYERS
    assert counter.futures == {}
    assert loads.start() == -1


def test_a_release_that_the_store_refuses_ends_nothing(loads: Loads) -> None:
    """The store ends the pins with the lease."""
    match = pinned()
    match.release_error = StoreUnavailable("absent")
    loads.queue("a", queued(match, 0, [1]))
    assert loads.finish(loads.start())
