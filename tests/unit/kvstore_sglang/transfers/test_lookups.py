"""Lookups of waiting requests: remembered, pinned, and released."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import StoreBudget
from kvstore_client.errors import StoreError, StoreTimedOut, StoreUnavailable
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES, pack_tokens
from kvstore_sglang.transfers.lookups import (
    FORGOTTEN_SECONDS,
    KEPT_SECONDS,
    RENEWAL_SECONDS,
    SWEEP_SECONDS,
    Lookups,
)

PAGE = 4
TOKENS = list(range(12))


@dataclass(eq=False)
class Pinned:
    """The part of a ``Match`` that is used."""

    page_count: int = 0
    failure: StoreError | None = None
    session_ended: bool = False
    releases: int = 0

    def release(self) -> None:
        """Counts releases."""
        self.releases += 1


@dataclass
class Source:
    """A store with the same number of pages of each sequence, and a clock that each call moves."""

    pages: int = 2
    seconds: float = 0.0
    now: float = 100.0
    failure: StoreError | None = None
    error: Exception | None = None
    has_windows: bool = False
    calls: list[tuple[bytes, bytes]] = field(default_factory=list)
    start_pages: list[int] = field(default_factory=list)
    given: list[Pinned] = field(default_factory=list)

    def clock(self) -> float:
        """Returns the time."""
        return self.now

    def start_page(self, device_pages: int) -> int:
        """Returns the first page for which an answer holds."""
        return device_pages if self.has_windows else 0

    def match(self, salt: bytes, tokens: bytes, budget: StoreBudget, start_page: int = 0) -> Pinned:
        """Pins pages, or fails as it is told to."""
        self.calls.append((salt, tokens))
        self.start_pages.append(start_page)
        if self.error is not None:
            raise self.error
        try:
            with budget.spend(60.0):
                self.now += self.seconds
        except StoreError as error:
            return Pinned(failure=error)
        pages = min(self.pages, len(tokens) // TOKEN_BYTES // PAGE)
        self.given.append(Pinned(0 if self.failure else pages, self.failure))
        return self.given[-1]

    @property
    def held(self) -> list[Pinned]:
        """The matches that are not released yet."""
        assert all(each.releases <= 1 for each in self.given)
        return [each for each in self.given if not each.releases]


def whole(tokens: Sequence[int]) -> bytes:
    """Packs whole pages."""
    return pack_tokens(tokens)[: len(tokens) // PAGE * PAGE * TOKEN_BYTES]


def lookups_of(source: Source, counts: "Counter[str] | None" = None) -> Lookups:
    """Returns lookups by a source's clock."""
    made = Counter() if counts is None else counts
    return Lookups(source, whole, PAGE, 0.25, made, source.clock)  # type: ignore[arg-type]


def test_a_queue_that_is_walked_again_asks_nothing() -> None:
    """The second answer is the first one, and counts what the device has by then."""
    source = Source(pages=3)
    lookups = lookups_of(source)
    assert [lookups.find("a", b"", TOKENS, device) for device in (0, 1, 2, 0)] == [3, 2, 1, 3]
    assert source.calls == [(b"", pack_tokens(TOKENS) + ONE_MORE)]


def test_other_tokens_or_another_salt_are_asked_about() -> None:
    """A request that grew, or an id that is used again, never gets the answer of before."""
    source = Source(pages=3)
    lookups = lookups_of(source)
    for salt, tokens in ((b"", TOKENS), (b"s", TOKENS), (b"s", TOKENS[::-1]), (b"s", TOKENS[:8])):
        lookups.find("a", salt, tokens, 0)
    assert len(source.calls) == 4
    assert len(source.held) == 1
    lookups.drop_all()
    assert source.held == []


def test_an_answer_that_lacks_pages_is_kept_for_a_second() -> None:
    """Later another engine may have saved the rest; a whole answer is kept."""
    source = Source(pages=2)
    lookups = lookups_of(source)
    assert lookups.find("a", b"", TOKENS, 0) == 2
    source.pages, source.now = 3, source.now + KEPT_SECONDS / 2
    assert lookups.find("a", b"", TOKENS, 0) == 2
    source.now += KEPT_SECONDS
    assert lookups.find("a", b"", TOKENS, 0) == 3
    source.now += 10 * KEPT_SECONDS
    assert lookups.find("a", b"", TOKENS, 0) == 3
    assert len(source.calls) == 2


def test_pages_that_the_device_has_are_not_pinned() -> None:
    """A match of no use is released, and asked for again if the device evicts its pages."""
    source = Source(pages=2)
    lookups = lookups_of(source)
    assert lookups.find("a", b"", TOKENS, 2) == 0
    assert source.held == []
    assert lookups.find("a", b"", TOKENS, 2) == 0
    assert len(source.calls) == 1
    assert lookups.find("a", b"", TOKENS, 1) == 1
    assert len(source.held) == 1


def test_who_takes_a_match_releases_it() -> None:
    """A taken match is forgotten here; an unknown request has none."""
    source = Source()
    lookups = lookups_of(source)
    lookups.find("a", b"", TOKENS, 0)
    assert lookups.take("a") is source.given[0]
    assert lookups.take("a") is None
    lookups.drop("a")
    assert source.given[0].releases == 0


def test_a_slow_store_takes_a_quarter_of_a_second_of_each() -> None:
    """All lookups together wait no longer than the timeout, and later ones may wait again."""
    source = Source(seconds=0.2)
    counts: Counter[str] = Counter()
    lookups = lookups_of(source, counts)
    found = [lookups.find(str(number), b"", TOKENS, 0) for number in range(4)]
    assert found == [2, 2, 0, 0]
    assert counts["lookups_unavailable"] == 2
    source.now += RENEWAL_SECONDS
    assert lookups.find("later", b"", TOKENS, 0) == 2


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(StoreUnavailable("absent"), "unavailable"), (StoreTimedOut("late"), "timeout")],
)
def test_a_failure_is_a_miss_with_its_reason(failure: StoreError, outcome: str) -> None:
    """The counts say why there was no hit."""
    counts: Counter[str] = Counter()
    lookups = lookups_of(Source(failure=failure), counts)
    assert lookups.find("a", b"", TOKENS, 0) == 0
    assert counts == {f"lookups_{outcome}": 1, "asked_tokens": 12, "matched_tokens": 0}


def test_an_error_is_a_miss() -> None:
    """No error reaches the scheduler: the other ranks would wait for this one."""
    counts: Counter[str] = Counter()
    lookups = lookups_of(Source(error=RuntimeError("a bug")), counts)
    assert lookups.find("a", b"", TOKENS, 0) == 0
    assert counts["lookups_miss"] == 1


def test_a_sequence_without_a_whole_page_is_not_asked_about() -> None:
    """It is a miss without a call."""
    source = Source()
    assert lookups_of(source).find("a", b"", TOKENS[:3], 0) == 0
    assert source.calls == []


def test_hits_are_counted_by_their_extent() -> None:
    """Whole and partial hits count apart, with the tokens asked for and found."""
    counts: Counter[str] = Counter()
    lookups = lookups_of(Source(pages=3), counts)
    lookups.find("a", b"", TOKENS, 0)
    lookups.find("b", b"", list(range(20)), 0)
    expected = {"lookups_full": 1, "lookups_partial": 1, "asked_tokens": 32, "matched_tokens": 24}
    assert counts == expected


def test_pages_of_an_ended_session_are_released() -> None:
    """The client attaches again only then; the lookups of the new session stay."""
    source = Source()
    lookups = lookups_of(source)
    lookups.find("a", b"", TOKENS, 0)
    lookups.find("b", b"", TOKENS, 0)
    source.given[0].session_ended = True
    source.now += SWEEP_SECONDS
    lookups.drop_ended()
    assert source.held == [source.given[1]]


def test_a_match_of_windows_holds_while_the_device_keeps_its_pages() -> None:
    """It lacks windows that the device had: once the device loses them, the store is asked."""
    source = Source(has_windows=True, pages=3)
    lookups = lookups_of(source)
    assert [lookups.find("a", b"", TOKENS, pages) for pages in (1, 2, 1)] == [2, 1, 2]
    assert source.start_pages == [1]
    assert lookups.find("a", b"", TOKENS, 0) == 3
    assert source.start_pages == [1, 0]
    assert source.held == [source.given[1]]
    source.pages = 2
    lookups.find("b", b"", TOKENS, 0)
    assert lookups.find("b", b"", TOKENS, 1) == 1
    assert source.start_pages == [1, 0, 0, 1]


def test_lookups_that_nobody_waits_for_are_dropped() -> None:
    """Pinned pages are kept for a minute after their last use, and answers without for a second."""
    source = Source()
    lookups = lookups_of(source)
    lookups.find("pinned", b"", TOKENS, 0)
    lookups.find("there", b"", TOKENS, 2)
    source.now += KEPT_SECONDS + SWEEP_SECONDS
    lookups.drop_ended()
    assert len(lookups) == 1
    source.now += FORGOTTEN_SECONDS - KEPT_SECONDS
    lookups.find("pinned", b"", TOKENS, 0)
    source.now += FORGOTTEN_SECONDS
    lookups.drop_ended()
    assert len(lookups) == 1
    source.now += SWEEP_SECONDS
    lookups.drop_ended()
    assert source.held == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["find", "take", "drop", "end", "wait"]),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_match_is_held_by_its_request_or_released_once(
    steps: list[tuple[str, str, int, int]],
) -> None:
    """The answer is the store's at some time in the last second, and nothing leaks."""
    source = Source()
    lookups = lookups_of(source)
    taken: list[Pinned] = []
    for step, rid, number, pages in steps:
        if step == "find":
            source.pages = pages
            calls = len(source.calls)
            found = lookups.find(rid, b"", TOKENS, number)
            if len(source.calls) > calls:
                assert found == max(0, pages - number)
        elif step == "take":
            match = lookups.take(rid)
            taken += [] if match is None else [match]  # type: ignore[list-item]
        elif step == "drop":
            lookups.drop(rid)
        elif step == "end":
            lookups.drop_ended()
        else:
            source.now += number
        assert len(source.held) <= len(lookups) + len(taken)
    lookups.drop_all()
    assert len(lookups) == 0
    assert set(map(id, source.held)) == {id(each) for each in taken if not each.releases}


def test_each_answer_is_told_once() -> None:
    """A remembered answer is no news, and neither a failure nor an error is an answer."""
    source, told = Source(pages=3), list[int]()
    lookups = lookups_of(source)
    for _ in range(2):
        lookups.find("a", b"", range(5 * PAGE), 0, told.append)
    assert told == [3]
    source.failure = StoreUnavailable("away")
    lookups.find("b", b"", range(5 * PAGE), 0, told.append)
    source.failure, source.error = None, OSError("broken")
    lookups.find("c", b"", range(5 * PAGE), 0, told.append)
    assert told == [3]


def test_a_listener_that_fails_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The pages stay pinned for the request."""

    def fail(page_count: int) -> None:
        raise ValueError(f"no event of {page_count} pages")

    source = Source(pages=3)
    lookups = lookups_of(source)
    assert lookups.find("a", b"", range(5 * PAGE), 0, fail) == 3
    assert "lookup_failed" in caplog.text
    lookups.drop("a")
    assert source.held == []
