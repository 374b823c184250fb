"""Steps of operations against the same operations by single calls, on two equal stores."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.core.invariants.check import Invariants
from kvstore.rpc.pipeline import Call, Method, Pipeline, method_of
from kvstore.rpc.servicers.prefix_cache import PrefixCacheServicer
from kvstore.v1 import prefix_cache_pb2 as pb
from stores.store_world import EPOCH, PAGE_TOKENS, World, make_world

PATH = "/kvstore.v1.PrefixCacheService/"
SLOTS = 8
# Few ids, tokens and pages, so that operations meet.
IDS = st.integers(0, 4)
TIMEOUT = 30.0


class Arriving(NamedTuple):
    """A call whose request is there."""

    call: Call
    body: bytes
    remaining: float


class Side:
    """A store, and one worker's calls to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        caller = world.worker()
        self._call = Call(caller.identity, secret_digest=caller.secret_digest, remaining=TIMEOUT)
        self._caller = pb.Caller(lease_id=caller.lease_id, store_epoch=EPOCH)
        self._space = world.open_namespace(caller)
        self._pipeline = Pipeline(world.store, world.clock)
        servicer, limits = PrefixCacheServicer(world.store), world.store.limits
        self._methods: dict[str, tuple[Method, type[Message]]] = {
            name: (method_of(PATH + serve.__name__, serve, limits), response)
            for name, serve, response in self._verbs(servicer)
        }

    def _verbs(
        self, servicer: PrefixCacheServicer
    ) -> Iterator[tuple[str, Callable[..., Message], type[Message]]]:
        yield "acquire", servicer.AcquirePrefix, pb.AcquirePrefixResponse
        yield "match", servicer.MatchPrefix, pb.MatchPrefixResponse
        yield "reserve", servicer.ReservePages, pb.ReservePagesResponse
        yield "insert", servicer.InsertPrefix, pb.InsertPrefixResponse
        yield "release", servicer.ReleasePins, pb.ReleasePinsResponse
        yield "abort", servicer.AbortReservation, pb.AbortReservationResponse
        yield "step", servicer.RunStep, pb.RunStepResponse

    def one_by_one(self, operations: Sequence[pb.StepOperation]) -> list[pb.StepResult]:
        """Makes each operation as a single call."""
        return [self._single(each) for each in operations]

    def in_one_call(self, operations: Sequence[pb.StepOperation]) -> list[pb.StepResult]:
        """Makes all operations in one step."""
        request = pb.RunStepRequest(
            caller=self._caller, namespace_id=self._space, operations=operations
        )
        answer = self._ask("step", request)
        assert isinstance(answer, pb.RunStepResponse), answer
        return list(answer.results)

    def _single(self, operation: pb.StepOperation) -> pb.StepResult:
        kind = str(operation.WhichOneof("operation"))
        copy = pb.StepOperation()
        copy.CopyFrom(operation)
        request: Any = getattr(copy, kind)
        request.caller.CopyFrom(self._caller)
        if kind in {"acquire", "match", "reserve"}:
            request.namespace_id = self._space
        answer = self._ask(kind, request)
        result = pb.StepResult()
        if isinstance(answer, self._methods[kind][1]):
            getattr(result, kind).CopyFrom(answer)
        else:
            result.error.CopyFrom(answer)
        self.counts[str(result.WhichOneof("result"))] += 1
        return result

    def _ask(self, name: str, request: Message) -> Any:  # noqa: ANN401  # a response or a status
        method, response = self._methods[name]
        body = request.SerializeToString()
        answer, failure = self._pipeline.answer(method, "", Arriving(self._call, body, TIMEOUT))
        return response.FromString(answer) if failure is None else failure

    def state(self) -> object:
        """Returns all that the store says of itself."""
        identity = self._call.who
        stats = self.world.store.stats(identity)
        requests = self.world.store.traffic.requests(identity.tenant)
        return stats.counters, stats.arenas, stats.leases, requests


@contextmanager
def sides() -> Iterator[tuple[Side, Side]]:
    """Provides two equal stores."""
    worlds = [make_world(slots=SLOTS, extent_slots=SLOTS) for _ in range(2)]
    try:
        one, other = (Side(each) for each in worlds)
        yield one, other
    finally:
        for each in worlds:
            each.close()


@st.composite
def token_bytes(draw: st.DrawFn) -> bytes:
    """Draws the tokens of up to three pages and a part of one, rarely with bytes left over."""
    pages = draw(st.lists(st.sampled_from([1, 2]), max_size=3))
    rest = draw(st.integers(0, PAGE_TOKENS - 1))
    numbers = [each for each in pages for _ in range(PAGE_TOKENS)] + [3] * rest
    content = b"".join(each.to_bytes(4, "little") for each in numbers)
    return content + bytes(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1])))


@st.composite
def sequences(draw: st.DrawFn) -> pb.Sequence:
    """Draws a sequence, from its beginning or from a hold on."""
    sequence = pb.Sequence(tokens=draw(token_bytes()))
    if draw(st.booleans()):
        sequence.position = draw(st.sampled_from([0, PAGE_TOKENS, 2 * PAGE_TOKENS, 1]))
        base = draw(st.sampled_from(["base_pin_id", "base_reservation_id", ""]))
        if base:
            setattr(sequence, base, draw(IDS))
    return sequence


@st.composite
def matches(draw: st.DrawFn) -> pb.StepOperation:
    """Draws a match."""
    request = pb.MatchPrefixRequest(
        sequence=draw(sequences()),
        pin_id=draw(IDS),
        source_pin_id=draw(st.sampled_from([0, 11, 12])),
        accept_next_token=draw(st.booleans()),
    )
    if draw(st.booleans()):
        request.groups.add(group=draw(st.integers(0, 2)), page_count=1)
    return pb.StepOperation(match=request)


@st.composite
def acquires(draw: st.DrawFn) -> pb.StepOperation:
    """Draws an acquire."""
    return pb.StepOperation(
        acquire=pb.AcquirePrefixRequest(
            sequence=draw(sequences()),
            pin_id=draw(IDS),
            source_pin_id=draw(st.sampled_from([0, 11, 12])),
            reservation_id=draw(st.integers(5, 9)),
            total_page_count=draw(st.integers(0, 5)),
            yield_to_in_flight=draw(st.booleans()),
        )
    )


@st.composite
def reserves(draw: st.DrawFn) -> pb.StepOperation:
    """Draws a reserve of one or two reservations."""
    request = pb.ReservePagesRequest()
    for _ in range(draw(st.integers(1, 2))):
        request.reservations.add(
            reservation_id=draw(st.integers(5, 9)),
            start_page=draw(st.integers(0, 2)),
            page_count=draw(st.integers(0, 4)),
        )
    return pb.StepOperation(reserve=request)


@st.composite
def inserts(draw: st.DrawFn) -> pb.StepOperation:
    """Draws an insert, some of them with slots of another reservation."""
    request = pb.InsertPrefixRequest(
        reservation_id=draw(st.integers(5, 9)),
        sequence=draw(sequences()),
        next_token=draw(st.none() | st.integers(0, 3)),
        page_checksums=draw(st.lists(st.just(7), max_size=2)),
    )
    if draw(st.sampled_from([False, False, True])):
        request.slots_reservation_id = draw(st.integers(5, 9))
        request.slot_offsets.extend(draw(st.lists(st.integers(0, 3), max_size=3)))
    return pb.StepOperation(insert=request)


RELEASES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 11, 12]), max_size=3).map(
    lambda ids: pb.StepOperation(release=pb.ReleasePinsRequest(pin_ids=ids))
)
ABORTS = st.lists(st.integers(4, 9), max_size=2).map(
    lambda ids: pb.StepOperation(abort=pb.AbortReservationRequest(reservation_ids=ids))
)
OPERATIONS = st.one_of(matches(), acquires(), acquires(), reserves(), inserts(), inserts())
STEPS = st.lists(st.lists(OPERATIONS | RELEASES | ABORTS, min_size=1, max_size=8), max_size=4)


def prompt(*pages: int) -> bytes:
    """Returns the tokens of whole pages and one more."""
    numbers = [each for each in pages for _ in range(PAGE_TOKENS)] + [3]
    return b"".join(each.to_bytes(4, "little") for each in numbers)


# Two sequences that begin, publish, are matched, go on and end.
WHOLE_LIVES = [
    [
        pb.StepOperation(
            acquire=pb.AcquirePrefixRequest(
                sequence=pb.Sequence(tokens=prompt(1, each)),
                pin_id=each,
                reservation_id=4 + each,
                total_page_count=3,
            )
        )
        for each in (1, 2)
    ],
    [
        pb.StepOperation(
            insert=pb.InsertPrefixRequest(
                reservation_id=4 + each, sequence=pb.Sequence(tokens=prompt(1, each)[:-4])
            )
        )
        for each in (1, 2)
    ]
    + [
        pb.StepOperation(
            match=pb.MatchPrefixRequest(sequence=pb.Sequence(tokens=prompt(1, 2)), pin_id=3)
        ),
        pb.StepOperation(release=pb.ReleasePinsRequest(pin_ids=[1, 2, 3])),
        pb.StepOperation(abort=pb.AbortReservationRequest(reservation_ids=[5, 6])),
    ],
]


@given(steps=STEPS)
@example(steps=WHOLE_LIVES)
def test_a_step_is_its_single_calls(steps: list[list[pb.StepOperation]]) -> None:
    """Each operation of a step ends as its single call does, and leaves the same store."""
    with sides() as (single, together):
        for operations in steps:
            assert together.in_one_call(operations) == single.one_by_one(operations)
            assert together.state() == single.state()
            Invariants(together.world.cache).check()


def test_the_drawn_operations_meet() -> None:
    """A whole life of two sequences succeeds, so the comparison has successes too."""
    with sides() as (single, _):
        for operations in WHOLE_LIVES:
            single.one_by_one(operations)
        assert single.counts == {"acquire": 2, "insert": 2, "match": 1, "release": 1, "abort": 1}
