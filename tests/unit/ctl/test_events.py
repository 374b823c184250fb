"""The text of each event, and the events after the end of a watch."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Self, cast

from kvstore.v1 import store_pb2 as pb
from kvstore_client import History
from kvstore_client.admin import Admin
from kvstore_ctl.commands.events import KINDS, Titles, json_line, of_kinds, text_line, watched

SPACE, LEASE, PATH = bytes([0xAB] * 16), bytes([0xCD] * 16), bytes([0xEF] * 16)
TINY = pb.NamespaceInfo(namespace_id=SPACE, identity={"display_name": "tiny"})
HOUR = 3600


def event(number: int = 1, at: float = 2.5, **fields: Any) -> pb.WatchEventsResponse:  # noqa: ANN401
    """Returns an event ``at`` seconds after its store's start."""
    made = pb.WatchEventsResponse(sequence_number=number, tenant="uid-7", **fields)
    made.uptime.FromNanoseconds(round(at * 1e9))
    return made


def pages(**more: Any) -> pb.PagesEvent:  # noqa: ANN401
    """Returns an event of three pages."""
    values: dict[str, Any] = {"start_page": 2, "page_count": 3, "tier": "TIER_2"}
    values |= {"namespace_id": SPACE, "cause": pb.PagesEvent.CAUSE_EVICTED}
    return pb.PagesEvent(**values | more)


class Watch:
    """A watch that has ended."""

    def __init__(
        self, told: list[pb.WatchEventsResponse], remembered: int, began: float = 0.0
    ) -> None:
        self.began = event(0, began, began=pb.WatchBegan(remembered_event_count=remembered))
        self._told = told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[pb.WatchEventsResponse]:
        return iter(self._told)


class Store:
    """Answers one watch after another, and records their arguments."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = iter(watches)
        self.asked: list[tuple[float, History]] = []

    def capabilities(self) -> pb.GetCapabilitiesResponse:
        """Returns the longest time of a watch."""
        answer = pb.GetCapabilitiesResponse()
        answer.limits.max_watch.FromSeconds(HOUR)
        return answer

    def watch_events(self, _: bytes, *, seconds: float, history: History) -> Watch:
        """Begins the next watch."""
        self.asked.append((seconds, history))
        return next(self._watches)


def numbers(store: Store, count: int, **options: Any) -> list[float]:  # noqa: ANN401
    """Returns the times of the first events that are reported."""
    chosen = {"follow": False, "seconds": 0.0, "new": False} | options
    told = watched(cast("Admin", store), b"", **chosen)
    return [each.uptime.seconds for _, each in islice(told, count)]


def test_each_event_is_a_line() -> None:
    """An event's line has its tenant, its namespace's name and what was lost."""
    lease = pb.LeaseEvent(lease_id=LEASE, change=pb.LeaseEvent.CHANGE_ENDED, display_name="w\x1b")
    nameless = pb.LeaseEvent(lease_id=LEASE, change=pb.LeaseEvent.CHANGE_GRANTED)
    space = pb.NamespaceEvent(namespace_id=SPACE, change=pb.NamespaceEvent.CHANGE_DELETED)
    path = pages(path_digest=PATH)
    cases = {
        "lease cdcdcdcd (w\\x1b) ended": event(lease_changed=lease),
        "lease cdcdcdcd granted": event(lease_changed=nameless),
        "namespace tiny deleted": event(namespace_changed=space),
        "tiny: pages 2 to 4 inserted into tier 2, evicted path efefefef": event(
            pages_inserted=path
        ),
        "tiny: pages 2 to 4 removed from tier 2, evicted": event(pages_removed=pages()),
        "tiny: pages 2 to 4 copied to tier 2, evicted": event(pages_copied=pages()),
        "tiny: pages 2 to 4 copy removed from tier 2, evicted": event(copies_removed=pages()),
        "tiny: page 2 inserted into tier 2": event(
            pages_inserted=pages(page_count=1, cause=pb.PagesEvent.CAUSE_INSERTED)
        ),
        "(5 lost before) namespace tiny deleted": event(
            namespace_changed=space, lost_event_count=5
        ),
        "unknown event: None": event(),
    }
    store = Store(Watch(list(cases.values()), 0))
    told = watched(cast("Admin", store), b"", follow=False, seconds=1.0, new=True)
    for (at, each), expected in zip(told, cases, strict=True):
        line = text_line(at, each, Titles(list, [TINY])).replace(" (abababab)", "")
        assert line.endswith(f"  uid-7  {expected}")
        assert text_line(at, each, Titles(list)).replace("abababab", "tiny") == line


def test_a_namespace_that_came_since_is_asked_for_once() -> None:
    """A new namespace's name is requested once. A deleted one is shown by its id from then on."""
    answers: list[list[pb.NamespaceInfo]] = [[], [TINY]]
    titles, later = Titles(answers.pop), datetime.now(UTC) + timedelta(days=1)
    assert [titles.of(SPACE, later) for _ in range(2)] == ["tiny (abababab)"] * 2
    assert [titles.of(LEASE, later) for _ in range(2)] == ["cdcdcdcd"] * 2
    assert answers == []


def test_those_that_are_gone_are_asked_for_together() -> None:
    """One request finds the names of all older namespaces, also of deleted ones."""
    answers: list[list[pb.NamespaceInfo]] = [[TINY]]
    titles, before = Titles(answers.pop), datetime.now(UTC)
    gone = [number.to_bytes(16) for number in range(3)]
    assert [titles.of(each, before) for each in gone] == ["00000000"] * 3
    assert titles.of(SPACE, before) == "tiny (abababab)"


def test_events_are_chosen_by_kind() -> None:
    """Choosing all kinds includes kinds that this program does not know."""
    told = [event(1, 1.0, pages_removed=pages()), event(2, 2.0, pages_inserted=pages()), event(3)]
    timed = [(datetime.now(UTC), each) for each in told]
    assert [each for _, each in of_kinds(timed, ["inserted"])] == told[1:2]
    assert [each for _, each in of_kinds(timed, ["inserted", "removed"])] == told[:2]
    assert [each for _, each in of_kinds(timed, KINDS)] == told


def test_an_event_is_json() -> None:
    """An event's JSON has the time, the common fields, and the one kind that is set."""
    store = Store(Watch([event(pages_removed=pages())], 0))
    [(at, told)] = watched(cast("Admin", store), b"", follow=False, seconds=1.0, new=True)
    found = json.loads(json_line(at, told))
    assert set(found) == {
        *("time", "sequence_number", "lost_event_count", "uptime", "tenant", "pages_removed")
    }
    assert found["pages_removed"]["cause"] == "CAUSE_EVICTED"


def test_how_a_watch_is_asked_for() -> None:
    """A watch is requested with the wanted history, for the wanted time up to the store's limit."""
    for options, asked in (
        ({}, (HOUR, History.ALONE)),
        ({"seconds": 5.0}, (5.0, History.FIRST)),
        ({"follow": True}, (HOUR, History.FIRST)),
        ({"new": True, "seconds": 5.0}, (5.0, History.NONE)),
    ):
        store = Store(Watch([event(1, 3.0)], 1))
        assert numbers(store, 1, **options) == [3]
        assert store.asked == [asked]


def test_following_goes_on_after_a_watch_s_end() -> None:
    """The next watch's history skips the events that were reported, and no others."""
    first = Watch([event(1, 1.0), event(2, 2.0), event(3, 4.0)], 2)
    second = Watch([event(1, 2.0), event(2, 4.0), event(3, 5.0), event(4, 5.0)], 3)
    third = Watch([event(1, 5.0), event(2, 6.0)], 1)
    store = Store(first, second, third)
    assert numbers(store, 6, follow=True) == [1, 2, 4, 5, 5, 6]
    assert {history for _, history in store.asked} == {History.FIRST}


def test_a_watch_may_end_among_events_of_one_moment() -> None:
    """The next watch reports the rest of a moment's events, and none is reported twice."""
    removed = [event(number, 2.0, pages_removed=pages(start_page=number)) for number in range(1, 6)]
    again = [
        event(number, 2.0, lost_event_count=int(number == 1), pages_removed=pages(start_page=page))
        for number, page in enumerate(range(2, 6), start=1)
    ]
    store = Store(Watch(removed[:3], 0), Watch(again, 4), Watch([event(1, 1.5)], 1))
    told = watched(cast("Admin", store), b"", follow=True, seconds=0.0, new=False)
    assert [each.pages_removed.start_page for _, each in islice(told, 5)] == [1, 2, 3, 4, 5]
    # An older event is reported if the remembered ones no longer include the last reported one.
    assert next(told)[1].uptime.ToNanoseconds() == 1.5e9


def test_what_comes_again_within_one_moment_is_not_what_was_told() -> None:
    """An event that repeats within one moment is reported again."""
    pages_1, pages_2 = pages(start_page=1), pages(start_page=2)
    moves = [event(1, 2.0, pages_copied=pages_1), event(2, 2.0, copies_removed=pages_2)] * 2
    for told_count in range(1, len(moves)):
        store = Store(Watch(moves[:told_count], 0), Watch(moves, len(moves)))
        told = watched(cast("Admin", store), b"", follow=True, seconds=0.0, new=False)
        assert [each for _, each in islice(told, len(moves))] == moves


def test_a_watch_longer_than_the_store_allows_is_several() -> None:
    """Several watches together last as long as wanted."""
    store = Store(Watch([event(1, 1.0)], 1), Watch([event(1, 1.0), event(2, 2.0)], 2))
    assert numbers(store, 9, seconds=1.5 * HOUR) == [1, 2]
    assert store.asked == [(HOUR, History.FIRST), (HOUR / 2, History.FIRST)]


def test_what_is_new_is_followed_alone() -> None:
    """Only the first watch skips the history; a later one reports the events in between."""
    silent = Watch([], 0, began=2.5)
    store = Store(silent, Watch([event(1, 2.0), event(2, 3.0), event(3, 4.0)], 2))
    assert numbers(store, 2, follow=True, new=True) == [3, 4]
    assert [history for _, history in store.asked] == [History.NONE, History.FIRST]
