"""A worker of the protocol: its requests, over any transport."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Condition
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import store_pb2
from kvstore_client import ClientConfig, NamespaceIdentity, OpaqueContent, PageLayout
from kvstore_client.calls.grpc_channel import CHANNEL_OPTIONS, StoreCalls
from kvstore_client.errors import StoreUnavailable
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceKey
from kvstore_client.values.page_runs import Pages

PAGE_TOKENS = 16
# Pages are named and not touched, so their bytes do not matter.
PAGE_BYTES = 64
KEY = NamespaceKey(
    NamespaceIdentity(b"a model of the benchmark"),
    PageLayout(
        PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"a layout of the benchmark", divides_by_token=True)
    ),
)
# Seconds. A call that takes longer than this ends the benchmark.
TIMEOUT = 30.0


class Ask(Protocol):
    """A function of a method's name, of PrefixCacheService or StoreService, and its request.

    ``tokens`` are those of its sequence, which the request does not have yet.
    """

    def __call__(self, name: str, request: Any, tokens: bytes = b"") -> Any:  # noqa: ANN401  # untyped
        """Returns the answer."""
        ...


class Posts:
    """Calls that nobody waits for, over the lane or over gRPC.

    Their answers are read with the lane's next call, or before gRPC's next post.
    """

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self._futures: deque[grpc.Future[Any]] = deque()
        self._told: list[bool] = []

    def post(self, name: str, request: Any) -> None:  # noqa: ANN401  # untyped
        """Sends a call."""
        method = getattr(self._calls.prefix_cache, name)
        if not self._calls.post(method, request, TIMEOUT, self._told.append):
            metadata = self._calls._metadata  # noqa: SLF001  # the one place that needs it
            self._futures.append(method.future(request, timeout=TIMEOUT, metadata=metadata))

    def before(self) -> None:
        """Reads gRPC's answers that have arrived."""
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()

    def end(self) -> None:
        """Waits for all answers. Raises ``AssertionError`` for a failed one."""
        while self._futures:
            self._futures.popleft().result()
        self._calls.collect(TIMEOUT)
        assert all(self._told), "a release was lost"
        self._told.clear()


class Worker:
    """One lease's requests in one namespace. One thread uses it."""

    def __init__(
        self,
        ask: Ask,
        probe: Callable[[], object],
        caller: pb.Caller,
        namespace_id: bytes,
        ids: Iterator[int],
        posts: Posts | None = None,
    ) -> None:
        self.health = probe
        self.posts = posts
        self._ask = ask
        self._caller = caller
        self._namespace_id = namespace_id
        self._ids = ids

    def match(self, tokens: bytes) -> tuple[tuple[int, int], int]:
        """Matches a sequence. Returns its pin, its source's pin, and the tokens of both."""
        pin_id, source_pin_id = next(self._ids), next(self._ids)
        request = pb.MatchPrefixRequest(
            caller=self._caller,
            namespace_id=self._namespace_id,
            sequence={},
            pin_id=pin_id,
            source_pin_id=source_pin_id,
        )
        match: pb.PrefixMatch = self._ask("MatchPrefix", request, tokens).match
        covered = match.matched_token_count + match.source.valid_token_count
        return (pin_id, source_pin_id), covered

    def acquire(self, tokens: bytes) -> tuple[int, int, int]:
        """Matches and reserves the rest. Returns pin, reservation and the number of slots."""
        pin_id, reservation_id, answer = self.acquired(tokens)
        return pin_id, reservation_id, len(Pages(answer.grant.runs))

    def acquired(self, tokens: bytes) -> tuple[int, int, pb.AcquirePrefixResponse]:
        """Matches and reserves the rest. Returns pin, reservation and the answer.

        The source page's pin has the id after the reservation's.
        """
        pin_id, reservation_id = next(self._ids), next(self._ids)
        request = pb.AcquirePrefixRequest(
            caller=self._caller,
            namespace_id=self._namespace_id,
            sequence={},
            pin_id=pin_id,
            source_pin_id=next(self._ids),
            reservation_id=reservation_id,
            total_page_count=page_count(tokens),
        )
        answer: pb.AcquirePrefixResponse = self._ask("AcquirePrefix", request, tokens)
        return pin_id, reservation_id, answer

    def insert(self, reservation_id: int, tokens: bytes, position: int, pin_id: int) -> int:
        """Publishes pages after those of a pin. Returns the number of published pages."""
        request = pb.InsertPrefixRequest(
            caller=self._caller,
            reservation_id=reservation_id,
            sequence={"tokens": tokens, "position": position},
        )
        if pin_id:
            request.sequence.base_pin_id = pin_id
        answer: pb.InsertPrefixResponse = self._ask("InsertPrefix", request)
        return answer.published_page_count

    def release(self, *pin_ids: int) -> None:
        """Releases pins. A request with none passes all layers and does nothing."""
        self._ask("ReleasePins", pb.ReleasePinsRequest(caller=self._caller, pin_ids=pin_ids))

    def abort(self, reservation_id: int) -> None:
        """Ends a reservation."""
        request = pb.AbortReservationRequest(caller=self._caller, reservation_ids=[reservation_id])
        self._ask("AbortReservation", request)

    def give_back(
        self, *, pin_ids: Sequence[int] = (), reservation_ids: Sequence[int] = ()
    ) -> None:
        """Releases pins or ends reservations, without waiting."""
        assert self.posts is not None
        self.posts.before()
        caller = self._caller
        if pin_ids:
            self.posts.post("ReleasePins", pb.ReleasePinsRequest(caller=caller, pin_ids=pin_ids))
        if reservation_ids:
            request = pb.AbortReservationRequest(caller=caller, reservation_ids=reservation_ids)
            self.posts.post("AbortReservation", request)

    def evict(self, tokens: bytes) -> None:
        """Removes the last page of a cached prefix and everything that continues it."""
        self._ask(
            "EvictPrefix",
            store_pb2.EvictPrefixRequest(
                namespace_id=self._namespace_id,
                tokens=tokens,
                store_epoch=self._caller.store_epoch,
            ),
        )


def page_count(tokens: bytes) -> int:
    """Returns the number of whole pages of packed tokens."""
    return len(tokens) // 4 // PAGE_TOKENS


@contextmanager
def attached_worker(
    runtime_dir: Path, *, hot_lane: bool = False, key: NamespaceKey = KEY
) -> Iterator[Worker]:
    """Attaches under a lease of its own, over its own channel, or a lane with ``hot_lane``."""
    folder = RuntimeDir(runtime_dir)
    config = ClientConfig(
        display_name="benchmark", ttl=60.0, connect_timeout=TIMEOUT, hot_lane=hot_lane
    )
    session = Attempt(folder, config).run(Condition(), itertools.count(1))
    with ExitStack() as stack:
        stack.callback(session.abandon)
        stack.callback(session.join, config.close_timeout)
        stack.callback(session.finish)
        stack.callback(session.end, StoreUnavailable("the benchmark is over"))
        session.open_namespace(key)
        opened = session.namespaces[key]
        assert isinstance(opened, OpenedNamespace)
        channel = grpc.insecure_channel(folder.grpc_target, options=CHANNEL_OPTIONS)
        stack.callback(channel.close)
        check = health_pb2_grpc.HealthStub(channel).Check
        calls = session.calls

        def ask(name: str, request: Any, tokens: bytes = b"") -> Any:  # noqa: ANN401  # untyped
            stub = calls.store if name == "EvictPrefix" else calls.prefix_cache
            return calls.call(getattr(stub, name), request, TIMEOUT, tokens=tokens)

        yield Worker(
            ask,
            lambda: check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT),
            session.lease._caller,  # noqa: SLF001  # the one place that needs it
            opened.namespace_id,
            iter(session.take_id, 0),
            Posts(calls),
        )
