"""gRPC's wire between simulated processes: what is lost, late, or sent twice.

A call is carried as bytes to the handlers of the store that runs when it
arrives. It is answered, or ends at its deadline, or at once with UNAVAILABLE
where there is no store or the connection breaks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import grpc

from simulation import current
from simulation.kernel import SimThread

# One way, in seconds: most calls take some hundred microseconds.
LEAST_WAY = 0.0002
MEAN_WAY = 0.0006

Metadata = tuple[tuple[str, str | bytes], ...]


class Answer(Protocol):
    """The result of an execution: bytes, or a status with its details."""

    code: grpc.StatusCode
    text: str
    payload: bytes
    trailing: Metadata


class Faults:
    """The probability of each fault of a call. With all zero the network works."""

    def __init__(self) -> None:
        self.lost_request = 0.0
        self.lost_answer = 0.0
        self.broken = 0.0
        self.slow = 0.0
        self.late = 0.0
        self.twice = 0.0


class Network(Protocol):
    """The network between workers and store, of one schedule."""

    faults: Faults

    def count(self, what: str) -> None:
        """Counts a fault."""
        ...

    def store(self) -> Any:  # noqa: ANN401 - a node, which imports this
        """Returns the store that answers now, or None."""
        ...


_networks: list[Network] = []


def begin(network: Network) -> None:
    """Sends all calls through this network."""
    _networks[:] = [network]


class CallFailed(grpc.RpcError, grpc.Call):
    """A call that ended without an answer."""

    def __init__(self, code: grpc.StatusCode, text: str, trailing: Metadata = ()) -> None:
        super().__init__(text)
        self._code, self._text, self._trailing = code, text, trailing

    def code(self) -> grpc.StatusCode:
        """Returns the code."""
        return self._code

    def details(self) -> str:
        """Returns the text."""
        return self._text

    def trailing_metadata(self) -> Any:  # noqa: ANN401 - grpc's own types differ
        """Returns the trailers, the status's details among them."""
        return self._trailing

    def initial_metadata(self) -> Metadata:
        """Returns nothing."""
        return ()

    def is_active(self) -> bool:
        """Returns that it ended."""
        return False

    def time_remaining(self) -> float:
        """Returns that there is none."""
        return 0.0

    def cancel(self) -> bool:
        """Does nothing."""
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Takes none."""
        del callback
        return False


class Call:
    """One call under way, as a future."""

    def __init__(self, channel: "Channel", method: "Method", request: bytes) -> None:
        self.channel, self.method, self.request = channel, method, request
        self.sent_at = current.kernel().now
        self.deadline = 0.0
        self.metadata: Metadata = ()
        self._done = False
        self._cancelled = False
        self._error: CallFailed | None = None
        self._payload = b""
        self._waiting: SimThread | None = None

    def finish(self, payload: bytes = b"", error: CallFailed | None = None) -> None:
        """Ends the call, unless it ended; from an event of the process that made it."""
        if self._done:
            return
        self._done, self._payload, self._error = True, payload, error
        self.channel.calls.pop(id(self), None)
        if self._waiting is not None:
            current.kernel().wake(self._waiting)

    def fail(self, code: grpc.StatusCode, text: str) -> None:
        """Ends the call without an answer."""
        self.finish(error=CallFailed(code, text))

    def cancel(self) -> None:
        """Gives it up."""
        if not self._done:
            self._cancelled = True
            self.fail(grpc.StatusCode.CANCELLED, "cancelled")

    def result(self) -> Any:  # noqa: ANN401 - as in grpc
        """Waits for the end, and returns the answer or raises."""
        kernel = current.kernel()
        while not self._done:
            self._waiting = kernel.running
            kernel.park()
        if self._cancelled:
            raise grpc.FutureCancelledError
        if self._error is not None:
            raise self._error
        return self.method.read(self._payload)


class Method:
    """A stub's method."""

    def __init__(
        self,
        channel: "Channel",
        name: str,
        write: Callable[[Any], bytes],
        read: Callable[[bytes], Any],
    ) -> None:
        self.name, self.read = name, read
        self._channel, self._write = channel, write

    def __call__(self, request: Any, *, timeout: float, metadata: Metadata) -> Any:  # noqa: ANN401 - as in grpc
        """Calls and waits."""
        return self.future(request, timeout=timeout, metadata=metadata).result()

    def future(self, request: Any, *, timeout: float, metadata: Metadata) -> Call:  # noqa: ANN401 - as in grpc
        """Call."""
        kernel = current.kernel()
        kernel.require_life()
        if self._channel.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        call = Call(self._channel, self, self._write(request))
        call.metadata = metadata
        call.deadline = kernel.now + timeout
        self._channel.calls[id(call)] = call
        _Delivery(_networks[0], call, timeout).begin()
        return call


class Channel:
    """A channel of the process whose thread makes it, to the one store there is."""

    def __init__(self, target: str, options: object = ()) -> None:
        del target, options
        running = current.kernel().running
        assert running is not None
        self.process = running.process
        self.closed = False
        self.calls: dict[int, Call] = {}

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,  # noqa: FBT001, FBT002 - as in grpc
    ) -> Method:
        """Returns the stub's method."""
        return Method(self, method, request_serializer, response_deserializer)

    unary_stream = unary_unary

    def close(self) -> None:
        """Ends it, and what is under way."""
        self.closed = True
        for call in list(self.calls.values()):
            call.fail(grpc.StatusCode.CANCELLED, "Channel closed!")


class _Delivery:
    """Carries one call there and its answer back, as chance has it."""

    def __init__(self, network: Network, call: Call, timeout: float) -> None:
        self._kernel = current.kernel()
        self._network, self._call, self._timeout = network, call, timeout
        self._process = call.channel.process
        self._store = network.store()
        # A call never reaches a later server of the store: its connection broke.
        self._server = 0 if self._store is None else self._store.server_number
        self._remaining = timeout

    def begin(self) -> None:
        """Sends it off."""
        self._kernel.after(self._timeout, self._pass_deadline, self._process)
        if self._store is None or not self._store.answers:
            self._break_soon()
            return
        self._store.when_gone(self._call, self._break_soon)
        if self._meets(self._network.faults.lost_request):
            self._network.count("lost_requests")
            return
        arrival, stall = self._way(), 0.0
        if self._meets(self._network.faults.late):
            # What stalls was admitted in time: what arrives past its deadline is refused.
            self._network.count("late")
            arrival = min(arrival, self._timeout / 2)
            stall = self._timeout * (1 + self._kernel.random.random())
        self._remaining = self._timeout - arrival
        action = self._arrive_twice if self._meets(self._network.faults.twice) else self._arrive
        self._kernel.after(arrival + stall, action)

    def _arrive_twice(self) -> None:
        """Be executed, and again later: the first answer got lost, and it was sent again."""
        if self._reaches:
            self._store.execute(self._call, self._remaining)
            self._network.count("duplicated")
            self._kernel.after(self._way(), self._arrive)

    def _arrive(self) -> None:
        if not self._reaches:
            return
        answer = self._store.execute(self._call, self._remaining)
        if self._meets(self._network.faults.broken):
            self._network.count("lost_answers")
            self._break_soon()
        elif self._meets(self._network.faults.lost_answer):
            self._network.count("lost_answers")
        else:
            self._kernel.after(self._way(), partial(self._deliver, answer), self._process)

    def _deliver(self, answer: Answer) -> None:
        if answer.code is grpc.StatusCode.OK:
            self._call.finish(answer.payload)
        else:
            self._call.finish(error=CallFailed(answer.code, answer.text, answer.trailing))

    def _pass_deadline(self) -> None:
        self._call.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _break_soon(self) -> None:
        self._kernel.after(self._way(), self._break, self._process)

    def _break(self) -> None:
        self._call.fail(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    @property
    def _reaches(self) -> bool:
        """True while the server to which the call was sent answers."""
        node = self._store
        return bool(node.alive and node.answers and node.server_number == self._server)

    def _meets(self, likelihood: float) -> bool:
        return self._kernel.random.random() < likelihood

    def _way(self) -> float:
        """Returns how long it is under way, in one direction."""
        mean = self._timeout if self._meets(self._network.faults.slow) else MEAN_WAY
        return LEAST_WAY + self._kernel.random.expovariate(1 / mean)
