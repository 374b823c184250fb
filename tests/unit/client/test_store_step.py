"""A step's answers that a real store never gives, on scripted sockets."""

from collections.abc import Iterator
from typing import cast

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import Namespace, Prefetched, Reservation, StoreBudget, StoreStep, errors
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.lifecycle.store_connector import Connector
from kvstore_client.namespace import PREFETCH
from kvstore_client.pages.held_pages import Hold
from kvstore_client.pages.spare_slots import SpareSlots
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.store_step import FEATURE
from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_client.values.page_runs import Pages
from wire.scripted_session import CAPABILITIES, KEY, ScriptedSession, matched, run_of
from wire.scripted_store import ScriptedCalls

TOKENS = [1, 2, 3, 4, 5]
SPACE = OpenedNamespace(b"space", 1, 4)
pytestmark = pytest.mark.usefixtures("releases_answered")


class OneSession:
    """A connector whose session is open."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.attached = attached
        self.session = attached.open()

    def want(self, key: object) -> None:
        """Does nothing, because the namespace is open already."""
        assert key == KEY

    def require_session(self) -> object:
        """Returns the session."""
        return self.session

    def new_budget(self) -> StoreBudget:
        """Returns a budget of 30 s."""
        return StoreBudget(30.0)


class Rig:
    """A namespace at a store that runs steps, as far as the client knows."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.attached = attached
        self.calls = attached.calls
        self.namespace = Namespace(cast("Connector", OneSession(attached)), KEY)
        self.session = attached.session
        self.session.features = frozenset({FEATURE})

    def answer(self, *results: pb.StepResult) -> None:
        """Answers the next step with these results."""
        self.calls.answer("RunStep", pb.RunStepResponse(results=results))

    def asked(self) -> list[pb.StepOperation]:
        """Returns the operations of the last step that was sent."""
        return list(pb.RunStepRequest.FromString(self.calls.requests["RunStep"][-1]).operations)

    def given_back(self) -> tuple[list[int], list[int]]:
        """Returns the pins and the reservations that single calls gave back."""
        assert self.session.flush(30)
        pins = map(pb.ReleasePinsRequest.FromString, self.calls.requests.get("ReleasePins", []))
        rest = self.calls.requests.get("AbortReservation", [])
        ended = map(pb.AbortReservationRequest.FromString, rest)
        return (
            [each for call in pins for each in call.pin_ids],
            [each for call in ended for each in call.reservation_ids],
        )

    def reservation(self, name: int, slot: int = 0) -> Reservation:
        """Returns a reservation of one slot."""
        with self.session.request():
            hold = Hold(self.session, reservation_ids=(name,))
        return Reservation(hold, SPACE, 0, Pages([run_of(slot)]), StoreBudget(30.0))


@pytest.fixture
def rig(attached: ScriptedSession) -> Iterator[Rig]:
    """Provides a namespace at a store that runs steps."""
    return Rig(attached)


def found(*slots: int, extent_id: int = 3) -> pb.StepResult:
    """Returns the result of a match."""
    answer = pb.MatchPrefixResponse(match=matched(*slots, extent_id=extent_id))
    return pb.StepResult(match=answer)


def refused(reason: str, *, retry_after_s: float | None = None, **metadata: str) -> pb.StepResult:
    """Returns the error of an operation."""
    status = status_pb2.Status(code=9, message="no")
    info = error_details_pb2.ErrorInfo(domain="kvstore", reason=reason, metadata=metadata)
    status.details.add().Pack(info)
    if retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(retry_after_s * 1_000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return pb.StepResult(error=status)


def test_features_are_those_of_the_store(runtime_dir: RuntimeDir, scripted: ScriptedCalls) -> None:
    """A session knows the features of its store, and a step without them makes single calls."""
    attached = ScriptedSession(runtime_dir, scripted)
    assert attached.session.features == frozenset(CAPABILITIES.features)
    scripted.answer("MatchPrefix", *[pb.MatchPrefixResponse(match=matched(0))] * 2)
    namespace = Namespace(cast("Connector", OneSession(attached)), KEY)
    with StoreStep(namespace) as step:
        outcomes = [step.match(TOKENS) for _ in range(2)]
    assert [each.result().page_count for each in outcomes] == [1, 1]
    assert "RunStep" not in scripted.requests
    for each in outcomes:
        each.result().release()
    attached.close()


def test_a_step_is_one_call_in_order(rig: Rig) -> None:
    """Operations are sent in their order, neighbouring releases together, under fresh ids."""
    reservations = [rig.reservation(each) for each in (8, 9)]
    step = StoreStep(rig.namespace)
    outcome = step.match(TOKENS)
    step.release(*reservations)
    acquired = step.acquire(TOKENS, total_page_count=2, yield_to_in_flight=True, yield_idle=0.5)
    rig.answer(
        found(0),
        pb.StepResult(abort=pb.AbortReservationResponse()),
        pb.StepResult(acquire=pb.AcquirePrefixResponse()),
    )
    step.run()
    match_, abort, acquire = rig.asked()
    assert match_.match.sequence.tokens == acquire.acquire.sequence.tokens
    assert list(abort.abort.reservation_ids) == [8, 9]
    assert (acquire.acquire.yield_to_in_flight, acquire.acquire.yield_idle_ms) == (True, 500)
    ids = [match_.match.pin_id, match_.match.source_pin_id, acquire.acquire.pin_id]
    assert len({*ids, acquire.acquire.source_pin_id, acquire.acquire.reservation_id}) == 5
    with outcome.result() as match:
        assert (match.page_count, match.pin_id) == (1, match_.match.pin_id)
    assert acquired.result().reservation is None
    assert rig.given_back() == ([match_.match.pin_id], [])


def test_a_step_prefetches_for_requests_that_wait(rig: Rig) -> None:
    """It has the tokens of each, and an error of one is its own."""
    rig.session.features = frozenset({FEATURE, PREFETCH})
    with StoreStep(rig.namespace) as step:
        outcomes = [step.prefetch(TOKENS), step.prefetch(TOKENS[:4])]
        rig.answer(
            pb.StepResult(
                prefetch=pb.PrefetchPrefixResponse(memory_token_count=4, declined_token_count=8)
            ),
            refused("INTERNAL"),
        )
    sent = [each.prefetch.sequence.tokens for each in rig.asked()]
    assert sent == [pack_tokens(TOKENS), pack_tokens(TOKENS[:4])]
    assert outcomes[0].result() == Prefetched(4, 0, 8)
    assert outcomes[1].result().failure is not None
    assert rig.given_back() == ([], [])


def test_a_single_prefetch_needs_no_step(rig: Rig) -> None:
    """It is the call of its own."""
    rig.session.features = frozenset({FEATURE, PREFETCH})
    rig.calls.answer("PrefetchPrefix", pb.PrefetchPrefixResponse(loading_token_count=4))
    with StoreStep(rig.namespace) as step:
        outcome = step.prefetch(TOKENS)
    assert outcome.result() == Prefetched(loading_token_count=4)
    assert "RunStep" not in rig.calls.requests


def test_a_step_at_a_store_without_tier_3_prefetches_nothing(rig: Rig) -> None:
    """The outcome is known before the step runs, and nothing is sent."""
    step = StoreStep(rig.namespace)
    assert step.prefetch(TOKENS).result() == Prefetched()
    with pytest.raises(ValueError, match="token"):
        step.prefetch([-1])
    step.run()
    assert "RunStep" not in rig.calls.requests


def test_a_match_in_a_step_may_be_the_base_of_an_insert(rig: Rig) -> None:
    """It is asked for as such, without a source page."""
    step = StoreStep(rig.namespace)
    outcome = step.match(TOKENS, is_base=True)
    rig.answer(found(0))
    step.run()
    [asked] = rig.asked()
    assert asked.match.is_base
    assert asked.match.source_pin_id == 0
    outcome.result().release()
    assert rig.given_back() == ([asked.match.pin_id], [])


@pytest.mark.parametrize(
    "results",
    [
        [],
        [found(0)],
        [found(0)] * 3,
        [found(0), pb.StepResult(insert=pb.InsertPrefixResponse())],
        [found(0), pb.StepResult()],
    ],
    ids=["none", "too few", "too many", "another kind", "unknown"],
)
def test_an_answer_that_is_none_gives_back_what_it_may_have_taken(
    rig: Rig, results: list[pb.StepResult]
) -> None:
    """Operations without a usable result are misses, and their ids go back."""
    step = StoreStep(rig.namespace)
    outcomes = [step.match(TOKENS), step.match(TOKENS)]
    rig.answer(*results)
    step.run()
    failures = [each.result().failure for each in outcomes]
    assert isinstance(failures[1], errors.StoreUnavailable)
    ids = [[each.match.pin_id, each.match.source_pin_id] for each in rig.asked()]
    if failures[0] is None:
        outcomes[0].result().release()
        assert rig.given_back()[0] == [*ids[1], ids[0][0]]
    else:
        assert rig.given_back()[0] == ids[0] + ids[1]


@pytest.mark.parametrize(
    ("result", "kind", "goes_back"),
    [
        (refused("PIN_NOT_FOUND"), errors.PinNotFound, False),
        (refused("INTERNAL"), errors.Internal, True),
        (refused("INVALID_FIELD", field="deadline", value="passed"), errors.StoreTimedOut, True),
        (found(0, extent_id=99), errors.StoreUnavailable, True),
    ],
)
def test_an_unclear_operation_gives_its_ids_back(
    rig: Rig, result: pb.StepResult, kind: type[errors.StoreError], *, goes_back: bool
) -> None:
    """Only what an operation may have taken goes back, and other operations keep theirs."""
    step = StoreStep(rig.namespace)
    bad, good = step.match(TOKENS), step.match(TOKENS)
    rig.answer(result, found(0))
    step.run()
    assert isinstance(bad.result().failure, kind)
    asked = rig.asked()[0].match
    with good.result() as match:
        assert match.page_count == 1
        wanted = [asked.pin_id, asked.source_pin_id] if goes_back else []
        assert rig.given_back()[0] == wanted


def test_a_lost_answer_gives_everything_back(rig: Rig) -> None:
    """Without an answer each operation fails, and all ids and all released holds go back."""
    reservation = rig.reservation(9)
    step = StoreStep(rig.namespace)
    looking, room = step.match(TOKENS), step.reserve(start_page=0, page_count=1)
    step.release(reservation)
    rig.calls.answer("RunStep", grpc.StatusCode.UNAVAILABLE)
    step.run()
    assert isinstance(looking.result().failure, errors.StoreUnavailable)
    with pytest.raises(errors.StoreUnavailable):
        room.result()
    match, reserve, abort = rig.asked()
    [reserved] = reserve.reserve.reservations
    assert list(abort.abort.reservation_ids) == [9]
    pins, ended = rig.given_back()
    assert pins == [match.match.pin_id, match.match.source_pin_id]
    assert sorted(ended) == sorted([9, reserved.reservation_id])
    assert not reservation.hold.open


def test_a_refused_release_is_repeated(rig: Rig) -> None:
    """Single calls release a hold that the store did not release in a step."""
    reservation = rig.reservation(9)
    step = StoreStep(rig.namespace)
    looking = step.match(TOKENS)
    step.release(reservation)
    rig.answer(found(), refused("QUOTA_EXCEEDED", retry_after_s=0.01))
    step.run()
    assert looking.result().failure is None
    assert rig.given_back() == ([], [9])


def test_an_operation_that_ends_the_lease_ends_the_session(rig: Rig) -> None:
    """An operation's error that says the lease is over ends the session, as a call's does."""
    step = StoreStep(rig.namespace)
    outcomes = [step.match(TOKENS), step.match(TOKENS)]
    rig.answer(refused("LEASE_EXPIRED"), refused("LEASE_EXPIRED"))
    step.run()
    assert [type(each.result().failure) for each in outcomes] == [errors.LeaseExpired] * 2
    assert isinstance(rig.session.ended, errors.LeaseExpired)


def test_a_namespace_that_is_gone_is_opened_again(rig: Rig) -> None:
    """After NAMESPACE_NOT_FOUND in a step the session opens the namespace again."""
    step = StoreStep(rig.namespace)
    outcomes = [step.match(TOKENS), step.match(TOKENS)]
    rig.answer(refused("NAMESPACE_NOT_FOUND"), refused("NAMESPACE_NOT_FOUND"))
    step.run()
    assert {type(each.result().failure) for each in outcomes} == {errors.NamespaceNotFound}
    assert KEY not in rig.session.namespaces


@pytest.mark.parametrize("reused", [(1,), (0, 1)], ids=["one", "both"])
def test_an_insert_on_reused_pages_is_not_sent(rig: Rig, reused: tuple[int, ...]) -> None:
    """The insert is not sent, even if the same step also releases its pages."""
    reservations = [rig.reservation(8 + slot, slot) for slot in (0, 1)]
    for slot in reused:
        rig.attached.recycle(slot)
    step = StoreStep(rig.namespace)
    outcomes = [step.insert(each, TOKENS[:4], position=0) for each in reservations]
    step.release(*reservations)
    sound = [slot for slot in (0, 1) if slot not in reused]
    inserted = [pb.StepResult(insert={"published_page_count": 1}) for _ in sound]
    rig.answer(*inserted, pb.StepResult(abort=pb.AbortReservationResponse()))
    step.run()
    for slot in reused:
        with pytest.raises(errors.PageRecycled):
            outcomes[slot].result()
    assert [outcomes[slot].result().published_page_count for slot in sound] == [1] * len(sound)
    asked = rig.asked()
    assert [each.insert.reservation_id for each in asked[:-1]] == [8 + slot for slot in sound]
    assert list(asked[-1].abort.reservation_ids) == [8, 9]


def test_a_page_that_does_not_exist_fails_its_insert_alone(rig: Rig) -> None:
    """Such an answer is a bug of the store. The step's release still takes effect."""
    other, good, bad = rig.reservation(8), rig.reservation(9, 1), rig.reservation(10, 99)
    step = StoreStep(rig.namespace)
    step.release(other)
    outcomes = [step.insert(each, TOKENS[:4], position=0) for each in (good, bad)]
    inserted = pb.StepResult(insert={"published_page_count": 1})
    rig.answer(pb.StepResult(abort=pb.AbortReservationResponse()), inserted)
    step.run()
    assert outcomes[0].result().published_page_count == 1
    with pytest.raises(errors.PageRecycled):
        outcomes[1].result()
    with pytest.raises(errors.PageRecycled):
        bad.insert(TOKENS[:4], position=0)
    for each in (good, bad):
        each.abort()
    assert rig.session.drained is False
    assert rig.session._holds == 0


def test_a_failure_within_the_client_gives_back_what_was_prepared(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends no step then, and still gives back what the step releases."""
    other, good = rig.reservation(8), rig.reservation(9, 1)
    step = StoreStep(rig.namespace)
    step.release(other)
    outcome = step.insert(good, TOKENS[:4], position=0)
    monkeypatch.setattr(good, "_checksums", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step.run()
    assert not outcome.known
    assert rig.given_back() == ([], [8])
    good.abort()
    assert rig.session._holds == 0


def test_pages_are_compared_after_the_wait_for_the_device(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot may be reused during the wait, which an earlier comparison would miss."""
    reused = rig.reservation(9, 1)
    monkeypatch.setattr(rig.session, "wait_for_device", lambda: rig.attached.recycle(1))
    step = StoreStep(rig.namespace)
    step.match(TOKENS)
    outcome = step.insert(reused, TOKENS[:4], position=0)
    rig.answer(pb.StepResult(match=pb.MatchPrefixResponse()))
    step.run()
    with pytest.raises(errors.PageRecycled):
        outcome.result()
    reused.abort()


def test_a_step_with_nothing_left_is_no_call(rig: Rig) -> None:
    """One reservation was aborted before the step ran, and the page of the other was reused."""
    other, reused = rig.reservation(8), rig.reservation(9, 1)
    step = StoreStep(rig.namespace)
    step.release(other)
    outcome = step.insert(reused, TOKENS[:4], position=0)
    other.abort()
    rig.attached.recycle(1)
    step.run()
    with pytest.raises(errors.PageRecycled):
        outcome.result()
    assert "RunStep" not in rig.calls.requests
    reused.abort()


def test_operations_of_a_kind_wait_for_its_retry_time(rig: Rig) -> None:
    """Operations whose kind was refused for a while are not sent, and the others are."""
    step = StoreStep(rig.namespace)
    outcomes = [step.match(TOKENS), step.reserve(start_page=0, page_count=1)]
    grant = pb.ReservationGrant(reservation_id=1, runs=[run_of(0)])
    reserved = pb.StepResult(reserve=pb.ReservePagesResponse(grants=[grant]))
    rig.answer(refused("QUOTA_EXCEEDED", retry_after_s=60.0), reserved)
    step.run()
    again = StoreStep(rig.namespace)
    late, room = again.match(TOKENS), again.reserve(start_page=0, page_count=1)
    rig.answer(reserved)
    again.run()
    assert [each.WhichOneof("operation") for each in rig.asked()] == ["reserve"]
    assert "not asked for another" in str(late.result().failure)
    for each in (outcomes[1], room):
        held = each.result()
        assert isinstance(held, Reservation)
        held.abort()


def test_spare_slots_are_of_one_insert(rig: Rig) -> None:
    """A reservation's insert with spare slots is its only one in a step."""
    reservation = rig.reservation(9)
    with rig.session.request():
        hold = Hold(rig.session, reservation_ids=(5,))
    spare = SpareSlots(hold, SPACE, Pages([run_of(1)]))
    for order in ((spare, None), (None, spare), (spare, spare)):
        step = StoreStep(rig.namespace)
        step.insert(reservation, TOKENS[:4], position=0, spare=order[0])
        with pytest.raises(ValueError, match="only one"):
            step.insert(reservation, TOKENS[:4], position=0, spare=order[1])
    reservation.abort()
    spare.abort()


def test_a_reservation_does_not_begin_before_the_first_page(rig: Rig) -> None:
    """Nothing is held after the refusal."""
    with pytest.raises(ValueError, match="set 0 or more"):
        rig.namespace.new_reservation(start_page=-1)
    assert rig.session._holds == 0


def test_a_hold_that_was_released_meanwhile_is_not_sent(rig: Rig) -> None:
    """A step releases only what is still held."""
    reservation = rig.reservation(9)
    step = StoreStep(rig.namespace)
    looking = step.match(TOKENS)
    step.release(reservation)
    reservation.abort()
    rig.answer(found())
    step.run()
    assert [each.WhichOneof("operation") for each in rig.asked()] == ["match"]
    assert looking.result().failure is None
    assert rig.given_back() == ([], [9])


def test_a_failing_device_sends_nothing(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> None:
    """If the wait for the device fails nothing is sent, and everything stays held."""
    broken = [False]

    def wait() -> None:
        if broken[0]:
            raise RuntimeError("the device failed")

    attached = ScriptedSession(runtime_dir, scripted, wait_for_device=wait)
    rig = Rig(attached)
    reservation = rig.reservation(9)
    step = StoreStep(rig.namespace)
    looking = step.match(TOKENS)
    step.release(reservation)
    broken[0] = True
    with pytest.raises(RuntimeError, match="the device failed"):
        step.run()
    assert reservation.hold.open
    assert not looking.known
    assert "RunStep" not in scripted.requests
    broken[0] = False
    reservation.abort()
    attached.close()
