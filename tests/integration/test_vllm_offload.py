"""Pages on their way into a real store and out of it, as vLLM's OffloadingConnector moves them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvstore_client import (
    ContiguousMemory,
    GroupWindow,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
    PageRef,
    connect_admin,
)
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.testing import RunningStore, wait_until
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import GroupPage, MatchedPages
from kvstore_vllm.offload.publication import Publication
from kvstore_vllm.offload.reserve import Reserve
from kvstore_vllm.offload.store_path import Stored, StorePath
from kvstore_vllm.scheduler.prefix_lookups import PrefixLookups
from kvstore_vllm.scheduler.store_threads import ThreadedAnswers
from kvstore_vllm.scheduler.store_work import StoreWork
from naive.news import NotedNews

PAGE, PAGE_BYTES = 4, 4096
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
LAYOUT = PageLayout(PAGE, PAGE_BYTES, OpaqueContent(b"rows as they are"))
WINDOW = 2
WINDOWS = (GroupWindow(1, WINDOW),)
# Long enough for a busy machine.
TIMEOUT = 20.0
MOST = 16
# Seconds that a step waits for slots: longer than any answer takes here.
WAIT = TIMEOUT
pytestmark = pytest.mark.store("--tier1-bytes", "256KiB", "--extent-bytes", "256KiB")


@dataclass
class Asked:
    """The fields of vLLM's ``Request`` that are read."""

    request_id: str
    all_token_ids: Sequence[int]
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.all_token_ids)


@dataclass
class Engine:
    """The parts of a manager without vLLM."""

    access: StoreAccess
    windows: Sequence[GroupWindow] = ()
    counts: "Counter[str]" = field(default_factory=Counter)
    news: NotedNews = field(default_factory=NotedNews)

    def __post_init__(self) -> None:
        self.work = StoreWork(self.access, PAGE, TIMEOUT)
        self.answers, self.publications = ThreadedAnswers(2), ThreadedAnswers(1)
        publication = Publication(self.work, PAGE)
        self.reserve = Reserve(
            lambda count: publication.reserve(RequestKey(), count), self.answers, MOST, WAIT
        )
        settings = PlannerSettings(page_tokens=PAGE, lookup_timeout=TIMEOUT)
        self.lookups = PrefixLookups(
            settings,
            self.work,
            self.answers,
            self.counts,
            usable=lambda: self.access.usable,
            joining=lambda: False,
            groups=self.windows,
        )
        self.matched = MatchedPages(self.lookups)
        self.stores = StorePath(
            PAGE,
            publication,
            self.publications,
            self.counts,
            usable=lambda: self.access.usable,
            reserve_of=lambda _: self.reserve,
            news=self.news,
            ended=lambda _: None,
        )

    def look_up(self, tokens: Sequence[int], *, generated: int = 0) -> Stored:
        """Returns a request whose lookup is answered."""
        asked = Asked("a request", tokens, len(tokens) - generated)
        tracked = Stored(asked, RequestKey())
        assert wait_until(lambda: self._knows(tracked))
        return tracked

    def _knows(self, tracked: Stored) -> bool:
        self.answers.deliver()
        return self.lookups.find(tracked) is not None

    def page_bytes(self, page: PageRef) -> set[int]:
        """Returns the values of a page's bytes."""
        return set(self.access.memory.page(page))

    def write(self, tracked: Stored, pages: Sequence[GroupPage], fill: int) -> int:
        """Writes pages into slots, and notes that they are; returns how many got one."""
        name = tracked.request.all_token_ids[0]
        wanted = [(repr((name, page)).encode(), page) for page in pages]
        # A busy machine may take longer to reserve slots than a request waits for them.
        self.reserve.want(len(wanted))
        assert wait_until(self._has_slots)
        found = None
        while found is None:
            found = self.stores.prepare(tracked, wanted)
        for each in found:
            value = fill + each.page.group * 100 + each.page.number
            self.access.memory.page(each.spare.page)[:] = bytes([value]) * PAGE_BYTES
        self.stores.copied(tracked, [each.key for each in found], failed=False)
        return len(found)

    def _has_slots(self) -> bool:
        self.answers.deliver()
        return not self.reserve.is_coming

    def settle(self) -> None:
        """Waits until all pages are published."""

        def settled() -> bool:
            self.answers.deliver()
            self.publications.deliver()
            self.stores.send()
            return not self.answers.under_way and not self.publications.under_way

        assert wait_until(settled)

    def fills(self, tracked: Stored, pages: Sequence[GroupPage]) -> list[set[int]]:
        """Returns the bytes of pages as a load finds them, and ends the load."""
        runs = self.matched.take(tracked, pages)
        assert runs is not None
        places = [PageRef(run.extent_id, slot) for run in runs for slot in run.slots]
        found = [self.page_bytes(each) for each in places]
        self.matched.loaded(tracked)
        return found

    def close(self) -> None:
        """Gives everything back."""
        self.settle()
        self.reserve.close()
        assert self.reserve.is_empty
        self.answers.close()
        self.publications.close()


def path(*numbers: int) -> list[GroupPage]:
    """Returns pages of the path."""
    return [GroupPage(0, number) for number in numbers]


def hanging(*numbers: int) -> list[GroupPage]:
    """Returns pages of the other group."""
    return [GroupPage(1, number) for number in numbers]


@pytest.fixture
def access(store: RunningStore) -> Iterator[StoreAccess]:
    """Provides an engine's access to the store."""
    made = StoreAccess(
        str(store.runtime_dir),
        IDENTITY,
        LAYOUT,
        name="vllm tiny",
        call_timeout=TIMEOUT,
        contiguous_memory=ContiguousMemory(),
    )
    assert wait_until(lambda: made.usable and made.memory.failure is None)
    yield made
    made.close()


@pytest.fixture
def engine(access: StoreAccess) -> Iterator[Engine]:
    """Provides an engine of one group."""
    made = Engine(access)
    yield made
    made.close()


@pytest.fixture
def hybrid(access: StoreAccess) -> Iterator[Engine]:
    """Provides an engine with a sliding window of two pages."""
    made = Engine(access, WINDOWS)
    yield made
    made.close()


def tokens(start: int, pages: int) -> list[int]:
    """Returns the tokens of some pages."""
    return list(range(start, start + pages * PAGE))


def test_pages_are_published_in_their_own_slots(engine: Engine) -> None:
    """A request's pages come back with their bytes, also those written before their time."""
    first = engine.look_up(tokens(0, 6))
    assert engine.matched.has(first, GroupPage(0, 0)) is False
    assert engine.write(first, path(0, 1, 2), 1) == 3
    assert engine.write(first, path(3, 4, 5), 1) == 3
    engine.stores.finish(first)
    engine.settle()
    assert first.idle
    assert engine.news.had[-1] == ("a request", 6)
    second = engine.look_up(tokens(0, 6))
    assert engine.fills(second, path(2, 3, 4, 5)) == [{3}, {4}, {5}, {6}]


def test_pages_that_the_store_has_are_kept(engine: Engine) -> None:
    """A second engine's pages are dropped and their slots come back; new ones follow."""
    for fill in (1, 50):
        request = engine.look_up(tokens(1_000, 4 if fill == 1 else 6))
        engine.lookups.drop(request)
        request.stored_pages = 0
        engine.write(request, path(*range(4 if fill == 1 else 6)), fill)
        engine.stores.finish(request)
        engine.settle()
    third = engine.look_up(tokens(1_000, 6))
    assert engine.fills(third, path(*range(6))) == [{1}, {2}, {3}, {4}, {54}, {55}]


def test_a_hole_ends_what_is_published(engine: Engine) -> None:
    """Pages after a page that nobody stored are not published, and their slots come back."""
    request = engine.look_up(tokens(2_000, 6))
    engine.write(request, path(0, 1, 3, 4), 1)
    engine.stores.finish(request)
    engine.settle()
    assert request.idle
    again = engine.look_up(tokens(2_000, 6))
    assert [engine.matched.has(again, page) for page in path(1, 2)] == [True, False]
    engine.lookups.drop(again)


def test_generated_pages_are_published_as_their_request_ends(engine: Engine) -> None:
    """A few generated pages wait for each other, because each publication is a call."""
    request = engine.look_up(tokens(3_000, 4), generated=2 * PAGE)
    engine.write(request, path(0, 1), 1)
    engine.settle()
    engine.write(request, path(2), 1)
    engine.write(request, path(3), 1)
    engine.settle()
    assert engine.news.had == [("a request", 2)]
    engine.stores.finish(request)
    engine.settle()
    assert engine.news.had[1:] == [("a request", 4)]


def test_a_publication_in_pieces_is_no_lookup(engine: Engine, store: RunningStore) -> None:
    """A request counts as one lookup, however many pieces its pages are published in."""
    with connect_admin(store.runtime_dir) as admin:
        before = admin.stats().counters
        request = engine.look_up(tokens(6_000, 6))
        for pages in (path(0, 1), path(2, 3), path(4, 5)):
            engine.write(request, pages, 1)
            engine.settle()
        engine.stores.finish(request)
        engine.settle()
        assert [count for _, count in engine.news.had] == [2, 4, 6]
        after = admin.stats().counters
    assert after.lookup_count - before.lookup_count == 1
    assert after.matched_token_count == before.matched_token_count


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Provides the calls that publish or match, each with the kinds of its operations."""
    made: list[list[str]] = []
    run_step, match, insert = LeaseCalls.run_step, LeaseCalls.match, LeaseCalls.insert

    def step(self: LeaseCalls, request: Any, timeout: float) -> Any:  # noqa: ANN401
        made.append([str(each.WhichOneof("operation")) for each in request.operations])
        return run_step(self, request, timeout)

    def matched(self: LeaseCalls, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        made.append(["one match"])
        return match(self, *arguments, **named)

    def inserted(self: LeaseCalls, *arguments: Any) -> Any:  # noqa: ANN401
        made.append(["one insert"])
        return insert(self, *arguments)

    monkeypatch.setattr(LeaseCalls, "run_step", step)
    monkeypatch.setattr(LeaseCalls, "match", matched)
    monkeypatch.setattr(LeaseCalls, "insert", inserted)
    return made


def test_requests_of_a_step_are_published_in_one_call(
    engine: Engine, calls: list[list[str]]
) -> None:
    """Their first pages need one call for all of them, and later pages two."""
    requests = [engine.look_up(tokens(7_000 + 100 * number, 4)) for number in range(3)]
    calls.clear()
    for each in requests:
        engine.write(each, path(0, 1), 1)
    engine.settle()
    assert calls == [["insert", "insert", "insert", "abort"]]
    calls.clear()
    for each in requests:
        engine.write(each, path(2, 3), 1)
        engine.stores.finish(each)
    engine.settle()
    assert calls == [["match"] * 3, ["insert", "insert", "insert", "release", "abort"]]
    assert all(each.idle for each in requests)
    assert [count for _, count in engine.news.had] == [2, 2, 2, 4, 4, 4]


def test_a_request_that_cannot_be_published_fails_alone(engine: Engine) -> None:
    """The others of its call are published."""
    requests = [engine.look_up(tokens(8_000 + 100 * number, 2)) for number in range(2)]
    for each in requests:
        engine.write(each, path(0, 1), 1)
    first, second = [wanted for _, wanted in engine.stores._waiting]
    engine.stores._waiting.clear()
    # Slots that another request has used, and tokens that no sequence has.
    used = first._replace(token_ids=tokens(8_500, 2))
    strange = first._replace(token_ids=[-1] * 2 * PAGE)
    wanted = [first, used, strange, second]
    found = Publication(engine.work, PAGE).publish(wanted)
    assert [each.path_end for each in found] == [2, 0, 0, 2]
    spares = {each.spare for part in (first, second) for each in part.pages}
    assert set().union(*(each.used for each in found)) == spares
    engine.reserve.used(spares)


def test_pages_on_those_of_another_request_of_the_call_follow_them(
    engine: Engine, calls: list[list[str]]
) -> None:
    """The later request's base is found once the earlier one's pages are published."""
    first, later = engine.look_up(tokens(9_000, 2)), engine.look_up(tokens(9_000, 4))
    later.stored_pages = 2
    calls.clear()
    engine.write(first, path(0, 1), 1)
    engine.write(later, path(2, 3), 1)
    engine.stores.finish(first)
    engine.stores.finish(later)
    engine.settle()
    assert calls == [
        ["match"],
        ["insert", "abort"],
        ["one match"],
        ["insert", "release", "abort"],
    ]
    again = engine.look_up(tokens(9_000, 4))
    assert engine.fills(again, path(0, 1, 2, 3)) == [{1}, {2}, {3}, {4}]


def test_a_match_ends_where_the_windows_are(hybrid: Engine) -> None:
    """Windows of a sliding group are found where they were kept, and nowhere else."""
    request = hybrid.look_up(tokens(4_000, 6))
    hybrid.write(request, [*path(*range(6)), *hanging(2, 3, 4)], 1)
    hybrid.stores.finish(request)
    hybrid.settle()
    found = hybrid.look_up(tokens(4_000, 6))
    # The window of page 5 lacks a page, so the match ends after page 4.
    assert [hybrid.matched.has(found, page) for page in path(4, 5)] == [True, False]
    window = [hybrid.matched.has(found, page) for page in hanging(2, 3, 4, 5)]
    assert window == [False, True, True, False]
    fills = hybrid.fills(found, [*path(1, 2, 3, 4), *hanging(3, 4)])
    assert fills == [{2}, {3}, {4}, {5}, {104}, {105}]


def test_a_window_is_added_to_a_path_that_is_there(hybrid: Engine) -> None:
    """Group pages alone are published on pages that another request stored."""
    request = hybrid.look_up(tokens(5_000, 4))
    hybrid.write(request, path(*range(4)), 1)
    hybrid.stores.finish(request)
    hybrid.settle()
    later = hybrid.look_up(tokens(5_000, 4))
    assert hybrid.matched.has(later, GroupPage(0, 0)) is False
    hybrid.lookups.drop(later)
    later.stored_pages = 4
    hybrid.write(later, hanging(2, 3), 1)
    hybrid.stores.finish(later)
    hybrid.settle()
    last = hybrid.look_up(tokens(5_000, 4))
    assert hybrid.fills(last, [*path(3), *hanging(2, 3)]) == [{4}, {103}, {104}]
