"""A session: its requests, the calls without an answer, and its end."""

from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread

import grpc
import pytest

from kvstore.v1 import prefix_cache_pb2, store_pb2
from kvstore.v1.types_pb2 import PageRun
from kvstore_client import errors
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.config import ContiguousMemory
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from kvstore_client.values.page_runs import Pages
from wire.scripted_session import ABORTED, KEY, RELEASED, REVOKED, ScriptedSession, match, matched
from wire.scripted_store import ScriptedCalls, refusal

MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(0))


def released(scripted: ScriptedCalls) -> list[int]:
    """Returns the pin ids that were released."""
    requests = scripted.requests.get("ReleasePins", [])
    return [p for r in requests for p in prefix_cache_pb2.ReleasePinsRequest.FromString(r).pin_ids]


def test_ids_are_never_used_twice(attached: ScriptedSession) -> None:
    """Ids have 64 bits, are not zero, differ, and begin at a random number."""
    ids = [attached.session.take_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(0 < each < 1 << 64 for each in ids)
    assert ids[0] > 1000


def test_a_namespace_is_open_once_its_extents_are_counted_on(attached: ScriptedSession) -> None:
    """A namespace is open once the store has acknowledged its extents."""
    session = attached.open()
    assert session.namespaces == {KEY: OpenedNamespace(b"space", 1, 4)}
    assert session.require_mapped(Pages()) == []
    assert list(session.extents.of_arena(1)) == [3]


def test_contiguous_memory_of_an_old_store_is_refused(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """The namespace of a store that states no places for its extents cannot be opened."""
    attached = ScriptedSession(runtime_dir, scripted, contiguous_memory=ContiguousMemory())
    why = attached.open().namespaces[KEY]
    assert isinstance(why, errors.StoreUnavailable)
    assert "extent 3 cannot be mapped" in str(why)
    assert "too old for ClientConfig.contiguous_memory" in str(why)
    assert attached.session.ended is None
    attached.close()


@pytest.mark.parametrize("kind", errors.SESSION_OVER)
def test_a_lease_that_is_over_ends_the_session(
    attached: ScriptedSession, kind: type[errors.StoreRefused]
) -> None:
    """A refusal that means the end of the lease ends the session and is raised."""
    (reason,) = (name for name, each in errors.StoreRefused.by_reason.items() if each is kind)
    attached.calls.answer("MatchPrefix", refusal(reason))
    with pytest.raises(kind):
        match(attached.session, 1)
    assert isinstance(attached.session.ended, kind)
    assert not attached.session.usable
    with pytest.raises(errors.StoreUnavailable, match="the session ended"):
        match(attached.session, 2)
    assert len(attached.calls.requests["MatchPrefix"]) == 1


def test_a_refusal_of_one_call_is_no_more_than_that(attached: ScriptedSession) -> None:
    """A refusal of one call leaves the session open, with nothing to release."""
    attached.calls.answer("MatchPrefix", refusal("LIMIT_EXCEEDED"), MATCH)
    with pytest.raises(errors.LimitExceeded):
        match(attached.session, 1)
    match(attached.session, 2)
    assert attached.session.flush(30)
    assert released(attached.calls) == []


@pytest.mark.parametrize("answer", [grpc.StatusCode.UNAVAILABLE, refusal("INTERNAL")])
def test_a_call_without_a_clear_answer_is_undone(
    attached: ScriptedSession, answer: grpc.StatusCode | bytes
) -> None:
    """The pin of a call without a clear answer is released in the background."""
    attached.calls.answer("MatchPrefix", answer)
    attached.calls.answer("ReleasePins", RELEASED)
    with pytest.raises(errors.StoreError):
        match(attached.session, 1)
    assert attached.session.flush(30)
    assert released(attached.calls) == [1]
    assert attached.session.usable


def test_a_request_that_is_interrupted_is_undone(attached: ScriptedSession) -> None:
    """An interrupted request releases its pins and reservations."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    attached.calls.answer("ReleasePins", RELEASED)
    attached.calls.answer("AbortReservation", ABORTED)
    with (
        pytest.raises(KeyboardInterrupt),
        attached.session.request(pin_ids=(1,), reservation_ids=(2,)) as asking,
    ):
        asking.ask(interrupted)
    assert attached.session.flush(30)
    assert released(attached.calls) == [1]
    assert len(attached.calls.requests["AbortReservation"]) == 1


def test_what_was_not_asked_is_not_undone(attached: ScriptedSession) -> None:
    """A request that ends before any call sends nothing."""
    with pytest.raises(KeyError), attached.session.request(pin_ids=(1,)):
        raise KeyError
    assert attached.session.flush(30)
    assert released(attached.calls) == []


def test_a_page_without_memory_is_no_answer(attached: ScriptedSession) -> None:
    """A page in an unmapped extent is refused."""
    session = attached.open()
    with pytest.raises(errors.StoreUnavailable, match="9"):
        session.require_mapped(
            Pages([PageRun(extent_id=extent_id, slot_indexes=[0]) for extent_id in (3, 9)])
        )


def test_pages_that_are_cut_off_are_no_answer(attached: ScriptedSession) -> None:
    """Packed slots that end within a number are refused, although the extent is mapped."""
    session = attached.open()
    with pytest.raises(errors.StoreUnavailable, match="within a number"):
        session.require_mapped(Pages([PageRun(extent_id=3, packed_slot_indexes=bytes(5))]))


def test_a_range_beyond_its_extent_is_no_answer(attached: ScriptedSession) -> None:
    """A range beyond its extent is refused before any page of it is made."""
    session = attached.open()
    extent = session.extents.get(3)
    assert extent is not None
    whole = Pages([PageRun(extent_id=3, slot_indexes=[0], slot_count=extent.slot_count)])
    assert len(session.require_mapped(whole)) == extent.slot_count
    for first, count in ((1, extent.slot_count), (0, 2**32 - 1), (2**32 - 1, 2**32 - 1)):
        with pytest.raises(errors.StoreUnavailable, match="3"):
            session.require_mapped(
                Pages([PageRun(extent_id=3, slot_indexes=[first], slot_count=count)])
            )


def test_releases_go_ahead_of_a_reserve(attached: ScriptedSession) -> None:
    """A reserve first waits for earlier releases, up to its own timeout."""
    slow, session = Event(), attached.session
    attached.calls.answer("ReleasePins", slow, RELEASED)
    session.give_back(pin_ids=[1])
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(StoreBudget(0.05)) as asking,
    ):
        session.settle(asking)
    slow.set()
    assert session.flush(30)
    with session.request() as asking:
        session.settle(asking)


def test_settling_ends_with_the_session(attached: ScriptedSession) -> None:
    """A request that waits for releases fails at once when the session ends."""
    slow = Event()
    attached.calls.answer("ReleasePins", slow, RELEASED)
    attached.session.give_back(pin_ids=[1])
    assert attached.calls.came.wait(30)
    ending = Thread(target=attached.session.end, args=(errors.StaleEpoch("restarted"),))
    with attached.session.request() as asking:
        ending.start()
        with pytest.raises(errors.StoreUnavailable, match="restarted"):
            attached.session.settle(asking)
    ending.join()
    slow.set()


def ways_to_end() -> list[tuple[str, Callable[[ScriptedSession], None]]]:
    """Returns the ways in which a session ends without a call."""
    return [
        ("hang-up", lambda attached: attached.attach.hang_up()),
        ("told", lambda attached: attached.session.end(errors.ClientClosed("closed"))),
    ]


@pytest.mark.parametrize(("_", "end"), ways_to_end())
def test_an_ended_session_drains(
    attached: ScriptedSession, _: str, end: Callable[[ScriptedSession], None]
) -> None:
    """An ended session keeps its memory until the last hold is released."""
    session = attached.open()
    with session.request():
        session.hold()
    end(attached)
    with attached.monitor:
        assert attached.monitor.wait_for(lambda: session.ended is not None, 30)
    assert not session.drained
    assert session.extents.get(3) is not None
    session.leave()
    assert session.drained


def test_the_first_reason_of_an_end_stays(attached: ScriptedSession) -> None:
    """The first reason of a session's end stays, because later ones follow from it."""
    first = errors.ClientClosed("first")
    attached.session.end(first)
    attached.session.end(errors.StoreUnavailable("second"))
    assert attached.session.ended is first


def test_a_drained_session_gives_up_its_memory_and_its_lease(attached: ScriptedSession) -> None:
    """Finishing unmaps the memory, reports it, revokes the lease and closes the connection."""
    session = attached.open()
    attached.calls.answer("RevokeLease", REVOKED)
    session.end(errors.ClientClosed("closed"))
    session.finish()
    assert session.join(30)
    assert session.extents.get(3) is None
    assert len(attached.calls.requests["RevokeLease"]) == 1
    assert wait_until(lambda: attached.attach.frames[-1].unmapped.extent_ids == [3])


def test_a_namespace_whose_extents_are_not_counted_on_does_not_open(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A namespace does not open while the store has not acknowledged its extents."""
    attached = ScriptedSession(runtime_dir, scripted)
    # Once it is attached: that takes as long as it takes.
    attached.session._config = replace(attached.config, connect_timeout=0.1)
    opened = store_pb2.OpenNamespaceResponse(namespace_id=b"space", extent_ids=[9])
    scripted.answer("OpenNamespace", opened)
    with pytest.raises(errors.StoreTimedOut):
        attached.session.open_namespace(KEY)
    assert attached.session.namespaces == {}
    attached.close()
