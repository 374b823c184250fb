"""What a namespace's calls may have taken goes back, source pages included."""

from collections.abc import Iterator
from typing import cast

import grpc
import pytest

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import Namespace, errors
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.lifecycle.connector import Connector
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_session import ABORTED, KEY, RELEASED, ScriptedSession, matched, run_of
from wire.scripted_store import ScriptedCalls


class OneSession:
    """A connector whose session is there."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.session = attached.open()

    def want(self, key: object) -> None:
        """The namespace is open already."""
        assert key == KEY

    def require_session(self) -> object:
        """Returns the session."""
        return self.session

    def new_budget(self) -> StoreBudget:
        """Returns time enough."""
        return StoreBudget(30.0)


@pytest.fixture
def attached(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[ScriptedSession]:
    """A session whose releases are answered."""
    attached = ScriptedSession(runtime_dir, scripted)
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    yield attached
    attached.close()


@pytest.fixture
def namespace(attached: ScriptedSession) -> Namespace:
    """A namespace in that session."""
    return Namespace(cast("Connector", OneSession(attached)), KEY)


def with_strange_source() -> pb.PrefixMatch:
    """Returns a match whose source page lies where this process has nothing mapped."""
    match = matched(0)
    match.source.source_pin_id = 1
    match.source.valid_token_count = 2
    match.source.page.CopyFrom(run_of(0, extent_id=99))
    return match


@pytest.mark.parametrize(
    "answer", [grpc.StatusCode.UNAVAILABLE, pb.MatchPrefixResponse(match=with_strange_source())]
)
def test_both_pins_of_a_match_go_back(
    attached: ScriptedSession, namespace: Namespace, answer: pb.MatchPrefixResponse
) -> None:
    """Where the answer is lost, and where it names memory that is not mapped here."""
    attached.calls.answer("MatchPrefix", answer)
    assert isinstance(namespace.match([1, 2, 3, 4, 5]).failure, errors.StoreUnavailable)
    assert attached.session.flush(30)
    [asked] = map(pb.MatchPrefixRequest.FromString, attached.calls.requests["MatchPrefix"])
    [back] = map(pb.ReleasePinsRequest.FromString, attached.calls.requests["ReleasePins"])
    assert asked.source_pin_id
    assert list(back.pin_ids) == [asked.pin_id, asked.source_pin_id]


@pytest.mark.parametrize(
    "answer", [grpc.StatusCode.UNAVAILABLE, pb.AcquirePrefixResponse(match=with_strange_source())]
)
def test_all_that_an_acquire_may_take_goes_back(
    attached: ScriptedSession, namespace: Namespace, answer: pb.AcquirePrefixResponse
) -> None:
    """Both pins and the reservation."""
    attached.calls.answer("AcquirePrefix", answer)
    acquired = namespace.acquire([1, 2, 3, 4, 5], total_page_count=2)
    assert isinstance(acquired.failure, errors.StoreUnavailable)
    assert attached.session.flush(30)
    [asked] = map(pb.AcquirePrefixRequest.FromString, attached.calls.requests["AcquirePrefix"])
    [back] = map(pb.ReleasePinsRequest.FromString, attached.calls.requests["ReleasePins"])
    [gone] = map(pb.AbortReservationRequest.FromString, attached.calls.requests["AbortReservation"])
    assert list(back.pin_ids) == [asked.pin_id, asked.source_pin_id]
    assert list(gone.reservation_ids) == [asked.reservation_id]
