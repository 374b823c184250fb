"""A step of many sequences by one call, beside the same operations by single calls.

All ways to make a kind of step are measured in turns, so that they see the same machine.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from threading import Condition
from time import perf_counter, process_time
from typing import Any, NamedTuple

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import Acquired, Client, ClientConfig, Inserted, Namespace, StoreStep
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.grpc_channel import PREFIX_CACHE
from kvstore_client.calls.lane import Lane
from kvstore_client.errors import StoreUnavailable
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import running_store
from kvstore_client.values.packed_tokens import pack_tokens
from support.rpc.worker import KEY, PAGE_BYTES, PAGE_TOKENS, page_count

TIMEOUT = 60.0
MICROSECONDS = 1e6
# Pages that a sequence decodes before it ends, so that each is inserted once.
DECODED_PAGES = 16
# In a mixed step, one of so many sequences begins, and another one ends.
MIXED_SHARE = 8
# In a steady step, each sequence begins once, decodes its pages and ends once.
STEADY_SHARE = DECODED_PAGES + 2
BEGIN, DECODE, END, MIXED, STEADY = "begin", "decode", "end", "mixed", "steady"
KINDS = (BEGIN, DECODE, END, MIXED, STEADY)
ONE_CALL, SINGLES, PIPELINED = "one call", "single calls", "pipelined single calls"
# Over the client, which has no pipelined calls; and on a lane, without the client's objects.
CLIENT_WAYS, LANE_WAYS = (ONE_CALL, SINGLES), (ONE_CALL, SINGLES, PIPELINED)
LANE_KINDS = (BEGIN, DECODE)


class Taken(NamedTuple):
    """The seconds of one step, and the processor seconds of client and store together."""

    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Measures steps of this process's only busy thread at one store's process."""

    def __init__(self, store_pid: int) -> None:
        self._tasks = Path(f"/proc/{store_pid}/task")
        self._began = self._cpu = 0.0

    def start(self) -> None:
        """Begins a step."""
        self._cpu = self._spent()
        self._began = perf_counter()

    def stop(self) -> Taken:
        """Ends the step."""
        seconds = perf_counter() - self._began
        return Taken(seconds, self._spent() - self._cpu)

    def _spent(self) -> float:
        tasks = (each / "schedstat" for each in self._tasks.iterdir())
        spent = sum(int(each.read_text(encoding="ascii").split()[0]) for each in tasks)
        return process_time() + spent / 1e9


class Running(NamedTuple):
    """A running sequence: what it holds, and its prompt."""

    acquired: Acquired
    prompt: bytes


def fresh_page(numbers: Iterator[int] = count(1 << 20)) -> bytes:  # noqa: B008  # one for all calls
    """Returns the tokens of a page that no sequence has."""
    return pack_tokens(array("I", [next(numbers)] * PAGE_TOKENS))


class Engine:
    """The calls of an engine's steps, over the client, with ``step`` or one by one without."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def publish(self, prompts: Sequence[bytes]) -> None:
        """Caches all prompts whole."""
        for prompt in prompts:
            with self._namespace.reserve(start_page=0, page_count=page_count(prompt)) as room:
                room.insert(prompt, position=0)

    def begin(
        self, step: StoreStep | None, prompts: Sequence[bytes]
    ) -> list[Callable[[], Acquired]]:
        """Acquires the pages of prompts, with room to decode. Returns what gives the results."""
        found: list[Callable[[], Acquired]] = []
        for prompt in prompts:
            # One token more, since a match leaves the last one to be computed.
            tokens, room = prompt + bytes(4), page_count(prompt) + DECODED_PAGES
            if step is None:
                acquired = self._namespace.acquire(tokens, total_page_count=room)
                found.append(partial(_same, acquired))
            else:
                found.append(step.acquire(tokens, total_page_count=room).result)
        return found

    def decode(
        self, step: StoreStep | None, running: Sequence[Running], page: int
    ) -> list[Callable[[], Inserted]]:
        """Inserts the next page of each sequence. Returns what gives the outcomes."""
        found: list[Callable[[], Inserted]] = []
        for (acquired, prompt), tokens in running_pages(running):
            assert acquired.reservation is not None
            position = len(prompt) // 4 + page * PAGE_TOKENS
            base = acquired.match if page == 0 else None
            if step is None:
                inserted = acquired.reservation.insert(tokens, position=position, base=base)
                found.append(partial(_same, inserted))
            else:
                outcome = step.insert(acquired.reservation, tokens, position=position, base=base)
                found.append(outcome.result)
        return found

    def end(self, step: StoreStep | None, running: Sequence[Running]) -> None:
        """Gives back what each sequence holds."""
        for acquired, _ in running:
            if step is None:
                acquired.release()
            else:
                step.release(acquired)

    def run(self, prompts: Sequence[bytes]) -> list[Running]:
        """Begins sequences, outside of any measurement."""
        begun = self.begin(None, prompts)
        return [Running(each(), prompt) for each, prompt in zip(begun, prompts, strict=True)]

    def decoding(self, prompts: Sequence[bytes]) -> Iterator[tuple[list[Running], int]]:
        """Yields sequences that decode and the number of their next page, without an end."""
        while True:
            running = self.run(prompts)
            for page in range(DECODED_PAGES):
                yield running, page
            self.end(None, running)


def _same(value: Any) -> Any:  # noqa: ANN401  # whatever it is
    return value


def running_pages(running: Sequence[Running]) -> Iterator[tuple[Running, bytes]]:
    """Yields each sequence with the tokens of a page of its own."""
    for each in running:
        yield each, fresh_page()


class Plan(NamedTuple):
    """The prompts of a kind of step: of the sequences that begin, decode and end in it."""

    begin: Sequence[bytes]
    decode: Sequence[bytes]
    end: Sequence[bytes]


def plan_of(kind: str, prompts: Sequence[bytes]) -> Plan:
    """Returns the prompts of a kind of step."""
    return {
        BEGIN: Plan(prompts, (), ()),
        DECODE: Plan((), prompts, ()),
        END: Plan((), (), prompts),
        MIXED: _shares(prompts, MIXED_SHARE),
        STEADY: _shares(prompts, STEADY_SHARE),
    }[kind]


def _shares(prompts: Sequence[bytes], share: int) -> Plan:
    part = max(len(prompts) // share, 1)
    return Plan(prompts[:part], prompts[2 * part :], prompts[part : 2 * part])


class ClientSteps:
    """Steps of one kind by one way, over the client."""

    def __init__(
        self,
        client: Client,
        namespace: Namespace,
        plan: Plan,
        watch: Stopwatch,
        *,
        by_one_call: bool,
    ) -> None:
        self._client = client
        self._watch = watch
        self._namespace = namespace
        self._engine = Engine(namespace)
        self._plan = plan
        self._by_one_call = by_one_call
        self._decoding = self._engine.decoding(plan.decode)

    def __call__(self) -> Taken:
        """Makes one step; returns what it took."""
        ending = self._engine.run(self._plan.end)
        running, page = next(self._decoding)
        self._client.flush(TIMEOUT)
        self._watch.start()
        step = StoreStep(self._namespace) if self._by_one_call else None
        decoded = self._engine.decode(step, running, page)
        self._engine.end(step, ending)
        begun = self._engine.begin(step, self._plan.begin)
        if step is not None:
            step.run()
        inserted = [each() for each in decoded]
        acquired = [each() for each in begun]
        # A single release is sent without a wait. The step ends once the store has it.
        self._client.flush(TIMEOUT)
        taken = self._watch.stop()
        assert all(each.published_page_count == 1 for each in inserted)
        for each, prompt in zip(acquired, self._plan.begin, strict=True):
            assert each.match.page_count == page_count(prompt), each.failure
            assert each.reservation is not None
            each.release()
        return taken


class LaneSteps:
    """Steps of one kind by one way, as bytes on a lane: what the client adds is left out."""

    def __init__(self, lane: Lane, requests: "LaneRequests", way: str, watch: Stopwatch) -> None:
        self._lane = lane
        self._watch = watch
        self._requests = requests
        self._way = way

    def __call__(self) -> Taken:
        """Makes one step; returns what it took."""
        name, requests, undo = self._requests.next()
        self._watch.start()
        if self._way == ONE_CALL:
            field = {"AcquirePrefix": "acquire", "InsertPrefix": "insert"}[name]
            answer = self._call("RunStep", self._requests.step_of(field, requests))
            results = pb.RunStepResponse.FromString(answer).results
            assert all(each.WhichOneof("result") == field for each in results)
        elif self._way == SINGLES:
            for each in requests:
                self._call(name, each)
        else:
            told: list[bool] = []
            for each in requests:
                sent = [each.SerializeToString()]
                assert self._lane.post(PREFIX_CACHE + name, sent, TIMEOUT, told.append)
            while self._lane.unread_count:
                self._lane.collect(TIMEOUT)
            assert len(told) == len(requests)
            assert all(told)
        taken = self._watch.stop()
        for undo_name, request in undo:
            self._call(undo_name, request)
        return taken

    def _call(self, name: str, request: Any) -> bytes:  # noqa: ANN401  # untyped
        return self._lane.call(PREFIX_CACHE + name, [request.SerializeToString()], TIMEOUT)


class LaneRequests:
    """The requests of one kind of step under one lease."""

    def __init__(self, caller: pb.Caller, namespace_id: bytes, ids: Iterator[int]) -> None:
        self._caller = caller
        self._namespace_id = namespace_id
        self._ids = ids
        self._prompts: Sequence[bytes] = ()
        self._open: list[tuple[int, int]] = []
        self._page = DECODED_PAGES
        self._kind = ""
        self._ask: Callable[[str, Any], bytes] = lambda _name, _request: b""

    def of(
        self, kind: str, prompts: Sequence[bytes], ask: Callable[[str, Any], bytes]
    ) -> "LaneRequests":
        """Returns the requests of a kind of step; ``ask`` makes a call by its name."""
        made = LaneRequests(self._caller, self._namespace_id, self._ids)
        made._kind, made._prompts, made._ask = kind, prompts, ask
        return made

    def next(self) -> tuple[str, list[Any], list[tuple[str, Any]]]:
        """Returns the method and the requests of a step, and the calls that undo it."""
        if self._kind == BEGIN:
            acquires = self._acquires()
            return "AcquirePrefix", acquires, self._undo(acquires)
        if self._page == DECODED_PAGES:
            for name, request in self._undo_open():
                self._ask(name, request)
            acquires = self._acquires()
            for each in acquires:
                self._ask("AcquirePrefix", each)
            self._open = [(each.pin_id, each.reservation_id) for each in acquires]
            self._page = 0
        inserts = []
        for (pin_id, reservation_id), prompt in zip(self._open, self._prompts, strict=True):
            request = pb.InsertPrefixRequest(
                caller=self._caller,
                reservation_id=reservation_id,
                sequence={
                    "tokens": fresh_page(),
                    "position": len(prompt) // 4 + self._page * PAGE_TOKENS,
                },
            )
            if self._page == 0:
                request.sequence.base_pin_id = pin_id
            inserts.append(request)
        self._page += 1
        return "InsertPrefix", inserts, []

    def step_of(self, field: str, requests: Sequence[Any]) -> pb.RunStepRequest:
        """Returns the requests as the operations of one step."""
        step = pb.RunStepRequest(caller=self._caller, namespace_id=self._namespace_id)
        for each in requests:
            operation = getattr(step.operations.add(), field)
            operation.CopyFrom(each)
            operation.ClearField("caller")
            if field == "acquire":
                operation.ClearField("namespace_id")
        return step

    def _acquires(self) -> list[pb.AcquirePrefixRequest]:
        return [
            pb.AcquirePrefixRequest(
                caller=self._caller,
                namespace_id=self._namespace_id,
                sequence={"tokens": prompt + bytes(4)},
                pin_id=next(self._ids),
                source_pin_id=next(self._ids),
                reservation_id=next(self._ids),
                total_page_count=page_count(prompt) + DECODED_PAGES,
            )
            for prompt in self._prompts
        ]

    def _undo(self, acquires: Sequence[pb.AcquirePrefixRequest]) -> list[tuple[str, Any]]:
        return self._gives_back([(each.pin_id, each.reservation_id) for each in acquires])

    def _undo_open(self) -> list[tuple[str, Any]]:
        return self._gives_back(self._open) if self._open else []

    def _gives_back(self, ids: Sequence[tuple[int, int]]) -> list[tuple[str, Any]]:
        pins, reservations = zip(*ids, strict=True)
        release = pb.ReleasePinsRequest(caller=self._caller, pin_ids=pins)
        abort = pb.AbortReservationRequest(caller=self._caller, reservation_ids=reservations)
        return [("ReleasePins", release), ("AbortReservation", abort)]


@contextmanager
def open_lane(runtime_dir: Path) -> Iterator[tuple[Lane, LaneRequests]]:
    """Opens a lane under a lease of its own."""
    folder = RuntimeDir(runtime_dir)
    config = ClientConfig(display_name="benchmark", ttl=60.0, connect_timeout=TIMEOUT)
    session = Attempt(folder, config).run(Condition(), count(1))
    with ExitStack() as stack:
        stack.callback(session.abandon)
        stack.callback(session.join, config.close_timeout)
        stack.callback(session.finish)
        stack.callback(session.end, StoreUnavailable("the benchmark is over"))
        session.open_namespace(KEY)
        opened = session.namespaces[KEY]
        assert isinstance(opened, OpenedNamespace)
        lane = Lane(folder.attach_socket)
        stack.callback(lane.close)
        shared = session.shared
        lane.open("benchmark", shared.lease_id, shared.secret, Deadline(TIMEOUT))
        caller = pb.Caller(
            lease_id=shared.lease_id,
            store_epoch=session.store_epoch,
            slot_ranges=True,
            packed_slots=True,
        )
        yield lane, LaneRequests(caller, opened.namespace_id, iter(session.take_id, 0))


def step_figures(
    sequence_count: int, token_count: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Returns the times of steps of so many sequences, with prompts of so many tokens."""
    prompts = [
        array("I", ((number * 7919 + start) % 50_021 for number in range(token_count))).tobytes()
        for start in range(sequence_count)
    ]
    # All prompts, what each way decodes meanwhile, and as much again, so that nothing is evicted
    # that a step begins with.
    pages = sequence_count * (page_count(prompts[0]) + 64 * DECODED_PAGES)
    size = -(-2 * pages * PAGE_BYTES // (1 << 21)) * (1 << 21)
    arguments = ("--tier1-bytes", str(size), "--extent-bytes", str(size))
    with ExitStack() as stack:
        store = stack.enter_context(running_store(*arguments))
        client = stack.enter_context(
            Client(store.runtime_dir, ClientConfig(call_timeout=TIMEOUT, hot_lane=True))
        )
        namespace = client.namespace(KEY.identity, KEY.layout)
        assert namespace.wait_open(TIMEOUT), namespace.failure
        Engine(namespace).publish(prompts)
        lane, requests = stack.enter_context(open_lane(store.runtime_dir))
        watch = Stopwatch(store.pid)

        def ask(name: str, request: Any) -> bytes:  # noqa: ANN401  # untyped
            return lane.call(PREFIX_CACHE + name, [request.SerializeToString()], TIMEOUT)

        tables: dict[str, dict[str, dict[str, Callable[[], Taken]]]] = {
            "client": {
                kind: {
                    way: ClientSteps(
                        client,
                        namespace,
                        plan_of(kind, prompts),
                        watch,
                        by_one_call=way == ONE_CALL,
                    )
                    for way in CLIENT_WAYS
                }
                for kind in KINDS
            },
            "lane": {
                kind: {
                    way: LaneSteps(lane, requests.of(kind, prompts, ask), way, watch)
                    for way in LANE_WAYS
                }
                for kind in LANE_KINDS
            },
        }
        figures = {
            over: {kind: _measure(ways, rounds, seconds) for kind, ways in kinds.items()}
            for over, kinds in tables.items()
        }
    return {"sequences": sequence_count, "tokens": token_count, **figures}


def _measure(
    ways: dict[str, Callable[[], Taken]], rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Returns the figures of each way, measured in turns."""
    samples: dict[str, list[list[Taken]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: -1 if number % 2 else 1]:
            found: list[Taken] = []
            until = perf_counter() + seconds
            while perf_counter() < until or not found:
                found.append(ways[way]())
            samples[way].append(found)
    one = samples[ONE_CALL]
    return {
        way: {
            "p50_us": _microseconds(map(_wall, own)),
            "least_us": _microseconds(map(_least, own)),
            "cpu_us": _microseconds(map(_cpu, own)),
            "times_one_call": _times(map(_wall, own), map(_wall, one)),
            "least_times_one_call": _times(map(_least, own), map(_least, one)),
            "cpu_times_one_call": _times(map(_cpu, own), map(_cpu, one)),
            "samples": sum(map(len, own)),
            "rounds_us": [round(_wall(each) * MICROSECONDS, 1) for each in own],
        }
        for way, own in samples.items()
    }


def _wall(round_: Sequence[Taken]) -> float:
    return median(each.seconds for each in round_)


def _least(round_: Sequence[Taken]) -> float:
    return min(each.seconds for each in round_)


def _cpu(round_: Sequence[Taken]) -> float:
    return median(each.cpu_seconds for each in round_)


def _microseconds(rounds: Iterable[float]) -> float:
    return round(median(rounds) * MICROSECONDS, 1)


def _times(own: Iterable[float], one: Iterable[float]) -> float:
    """Returns the median of the rounds' ratios."""
    return round(median(a / b for a, b in zip(own, one, strict=True)), 2)
