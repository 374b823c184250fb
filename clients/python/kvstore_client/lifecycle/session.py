"""One lease under one epoch of a store, with its mapped extents and its holds."""

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import NamedTuple, TypeVar

from kvstore.v1 import attach_pb2, store_pb2
from kvstore_client.calls.attach_connection import AttachConnection, ConnectionLost
from kvstore_client.calls.circuit_breaker import (
    CircuitBreaker,
    ProbeSample,
    ProbingBreaker,
    StoreRequest,
)
from kvstore_client.calls.deadlines import Backoff, Deadline, StoreBudget
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.config import MAX_CALL_TIMEOUT, ClientConfig
from kvstore_client.errors import (
    SESSION_OVER,
    ForkedClient,
    Internal,
    NotAttached,
    StoreError,
    StoreRefused,
    StoreTimedOut,
    StoreUnavailable,
)
from kvstore_client.lifecycle.joined_lease import SharedLease
from kvstore_client.lifecycle.lease_keeper import LeaseKeeper, LeaseTerm
from kvstore_client.lifecycle.release_sender import ReleaseSender
from kvstore_client.memory.address_range import ArenaRanges
from kvstore_client.memory.cuda.host_registration import host_registrar
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.mapped_extent import checksums_of
from kvstore_client.values.namespace_key import NamespaceKey
from kvstore_client.values.page_runs import PageRef, Pages


class OpenedNamespace(NamedTuple):
    """A namespace as this session knows it."""

    namespace_id: bytes
    arena_id: int
    page_tokens: int


class Attachment(NamedTuple):
    """A lease with this process bound to it.

    ``shared`` joins further processes. ``joined`` is True if another process owns the lease.
    ``features`` are those that the store offers.
    """

    connection: AttachConnection
    calls: StoreCalls
    lease: LeaseCalls
    term: LeaseTerm
    welcome: attach_pb2.Welcome
    limits: store_pb2.Limits
    shared: SharedLease
    joined: bool = False
    features: frozenset[str] = frozenset()


def is_unclear(error: BaseException) -> bool:
    """Returns whether a call that failed with ``error`` may have taken effect."""
    return not isinstance(error, StoreRefused) or isinstance(error, Internal)


T = TypeVar("T")

# Seconds from the failure of a call until its server's end is seen on the attach connection.
END_SEEN = 0.25
# The ids begin below this, so at least half of all ids follow the first.
FIRST_IDS = 1 << 63

_logger = logging.getLogger(__name__)


class Session:
    """The time from attaching until the end of the lease, the client, or the store's memory.

    If the store's memory outlives its server, the end of the connection *suspends* the session:
    it takes no work, and all its memory and holds stay. :meth:`resume` continues it over another
    connection.

    An ended session takes no new work. Its open matches and reservations stay usable: their
    memory stays mapped and is not recycled. Once the last one is released (*drained*),
    :meth:`finish` gives up the memory and the lease.

    Any thread may use it. Its fields change under ``monitor``, the client's, which is never
    held over I/O or a callback.
    """

    def __init__(
        self,
        attachment: Attachment,
        config: ClientConfig,
        monitor: Condition,
        numbers: Iterator[int],
    ) -> None:
        self.lease = attachment.lease
        self.calls = attachment.calls
        self.store_epoch = attachment.welcome.store_epoch
        self.tenant = attachment.welcome.tenant
        self.shared = attachment.shared
        self.features = attachment.features
        self.max_batch_size = attachment.limits.max_batch_size or 1
        self.joined = attachment.joined
        limit = attachment.limits.max_deadline.ToTimedelta().total_seconds()
        self.call_timeout = min(config.call_timeout, limit or config.call_timeout)
        self.namespaces: dict[NamespaceKey, OpenedNamespace | StoreError] = {}
        # The error of the last attempt to open a namespace, if a retry may succeed.
        self.not_yet: dict[NamespaceKey, StoreError] = {}
        self.ended: StoreError | None = None
        # Why the connection was lost, until there is another one.
        self.suspended: StoreError | None = None
        self._outlives = attachment.welcome.outlives
        self._connection_count = 1
        self._config = config
        self._monitor = monitor
        self._pid = os.getpid()
        self._ids = itertools.count(1 + secrets.randbelow(FIRST_IDS))
        self._holds = 0
        self._sample: ProbeSample | None = None
        self._connection = attachment.connection
        self._sender = sender = ReleaseSender(
            attachment.lease,
            call_timeout=self.call_timeout,
            backoff=Backoff(config.first_backoff, config.longest_backoff),
            max_batch_size=self.max_batch_size,
            tell_unmapped=self._tell_unmapped,
            closed=self._close,
            lingering=lambda: self.extents.lingering,
        )
        # Releases pins and reservations without waiting for the store.
        self.give_back = sender.give_back
        device = config.host_memory_device
        contiguous = config.contiguous_memory
        self.extents = ExtentTable(
            monitor,
            numbers,
            sender.unmapped,
            self.store_epoch,
            config.wait_for_device,
            None if device is None else host_registrar(device).register,
            None if contiguous is None else ArenaRanges(contiguous),
            populates=config.fill_page_tables,
        )
        self._breaker = ProbingBreaker(
            CircuitBreaker(
                first_open=self.call_timeout,
                longest_open=config.longest_open,
                probe_waits=Backoff(config.first_backoff, config.longest_backoff),
            ),
            monitor,
            self._probe,
            self._sender.prompt,
        )
        self._keeper = LeaseKeeper(
            attachment.lease.renew, self, attachment.term, longest_call=limit or MAX_CALL_TIMEOUT
        )
        self._keeper.start()
        self._serve(attachment.connection)

    # State.

    @property
    def usable(self) -> bool:
        """True while new work is sent: the lease is held and the store answers."""
        return self._continues and self._breaker.passes and self._keeper.holds

    @property
    def drained(self) -> bool:
        """True once the session ended and has no holds. The monitor may be held."""
        return self.ended is not None and self._holds == 0

    def end(self, reason: StoreError) -> None:
        """Stops new work. Can be repeated; the first reason stays."""
        with self._monitor:
            if self.ended is not None:
                return
            self.ended = reason
            self._monitor.notify_all()
        _logger.info("session_ended", extra={"reason": str(reason)})
        self._keeper.stop()
        self._breaker.close()
        self.calls.cancel()
        self._sender.wake()

    def resume(
        self, connection: AttachConnection, calls: StoreCalls, features: frozenset[str]
    ) -> bool:
        """Continues the suspended session over a bound connection. Returns False if it ended.

        The connector's thread calls it. The session owns both from now on unless it ended.
        """
        with self._monitor:
            if self.ended is not None:
                return False
            lost = self._connection, self.calls
            self._connection, self.calls, self.features = connection, calls, features
            self.lease.use(calls)
            self._breaker.begin_anew()
            self.suspended = None
            self._connection_count += 1
            self._monitor.notify_all()
        _logger.info("session_resumed", extra={"store_epoch": self.store_epoch})
        for each in lost:
            each.close()
        try:
            self._serve(connection)
        except RuntimeError as error:  # no threads left
            self.end(StoreUnavailable(f"the attach connection cannot be read: {error}"))
        self._keeper.prompt()
        self._sender.prompt()
        return True

    def _over(self, error: StoreError) -> StoreError:
        """Ends the session for a refusal of ``SESSION_OVER``, and returns the error to raise.

        The store's next server may answer before this process is attached to it. Then the session
        is suspended instead, and the call counts as not answered: it may have reached the server
        before.
        """
        if isinstance(error, NotAttached) and self._outlives:
            self._connection.abort()
            return StoreUnavailable(f"until this process is attached again: {error}")
        self.end(error)
        return error

    def _serve(self, connection: AttachConnection) -> None:
        connection.serve(self.extents, partial(self._lost, connection), self._keeper.prompt)

    def _tell_unmapped(self, extent_ids: list[int]) -> None:
        # A server that has not heard of them asks for them again.
        self._connection.tell_unmapped(extent_ids)

    def _lost(self, connection: AttachConnection, reason: StoreError) -> None:
        """Suspends the session if its memory may outlive the server, and otherwise ends it."""
        outlives = self._outlives and isinstance(reason, ConnectionLost)
        if isinstance(reason, ConnectionLost):
            # Callers know its public class.
            reason = StoreUnavailable(str(reason))
        if not outlives or self.extents.identities() is None:
            self.end(reason)
            return
        with self._monitor:
            if self.ended is not None or connection is not self._connection:
                return
            self.suspended = reason
            self._monitor.notify_all()
        _logger.info("session_suspended", extra={"reason": str(reason)})
        self._sender.wake()

    def renewed(self) -> None:
        """Notes that the store answers renewals, and probes whether it answers requests."""
        self._breaker.prompt()
        self._sender.prompt()

    def check_process(self) -> None:
        """Raises :class:`ForkedClient` in a process that is not the session's own."""
        if os.getpid() != self._pid:
            raise ForkedClient("this client belongs to the parent process")

    # Requests.

    def take_id(self) -> int:
        """Returns an id for a pin or a reservation, never used before under this lease."""
        return next(self._ids)

    @contextmanager
    def request(
        self,
        budget: StoreBudget | None = None,
        *,
        pin_ids: Sequence[int] = (),
        reservation_ids: Sequence[int] = (),
        sample: ProbeSample | None = None,
    ) -> Iterator[StoreRequest]:
        """Runs a request that may take these ids, and charges its time to ``budget``.

        The memory stays mapped until the block ends. If the request fails without a clear
        refusal, the ids are released in the background. After a timeout the background
        probes peek at ``sample`` until the store answers. Raises :class:`StoreUnavailable`
        at once if the session takes no work or the budget is spent.
        """
        with (budget or StoreBudget(self.call_timeout)).spend(self.call_timeout) as deadline:
            with self._monitor:
                self._require_open()
                ticket = self._breaker.admit()
                self._holds += 1
                self._sample = sample or self._sample
            request = StoreRequest(
                self._breaker, ticket, deadline, self._over, call_timeout=self.call_timeout
            )
            try:
                yield request
            except BaseException as error:
                if request.asked and is_unclear(error):
                    self._sender.give_back(pin_ids=pin_ids, reservation_ids=reservation_ids)
                raise
            finally:
                self._breaker.leave(ticket)
                self.leave()

    def ask_again(self, request: StoreRequest, call: Callable[..., T], *arguments: object) -> T:
        """Makes a call that may be repeated, with the request's remaining time as its timeout.

        Repeats it if the store's server ended before the answer and another server continues
        the session in this time. Raises the errors of ``StoreRequest.ask``.
        """
        while True:
            count = self._connection_count
            try:
                return request.ask(call, *arguments, request.remaining())
            except StoreTimedOut:
                raise
            except StoreUnavailable:
                if not self._wait_resumed(count, request):
                    raise

    def _wait_resumed(self, count: int, request: StoreRequest) -> bool:
        """Waits for a connection after the first ``count``; returns whether one came in time."""
        if not self._outlives:
            return False
        with self._monitor:
            # A lane may end before the attach connection does.
            self._monitor.wait_for(
                lambda: not self._continues or self._connection_count > count,
                min(END_SEEN, request.left()),
            )
            if self._connection_count == count and not self._continues:
                self._monitor.wait_for(
                    lambda: self.ended is not None or self._connection_count > count,
                    request.left(),
                )
            return self._continues and self._connection_count > count

    def settle(self, request: StoreRequest) -> None:
        """Waits until the store has all earlier releases; raises ``StoreUnavailable``.

        A release that is on a lane, ahead of the request, counts too. So a caller that
        released slots can reserve them again.
        """
        if self._sender.settle(request.remaining(), lambda: not self._continues):
            return
        self._require_open()
        error = StoreTimedOut("earlier releases are still under way")
        request.failed("settle", error)
        raise error

    def require_mapped(self, pages: Pages) -> Pages:
        """Returns ``pages``; raises :class:`StoreUnavailable` if one is not mapped here.

        Raises it for pages that are cut off too.
        """
        if pages.cut_off:
            raise StoreUnavailable("the answer's packed slots end within a number")
        strange = self.extents.strange(pages)
        if strange:
            raise StoreUnavailable(f"the answer names extents {sorted(strange)}, not mapped here")
        return pages

    def _probe(self) -> None:
        """Peeks at the last request's sample, or renews without one; raises ``StoreError``."""
        if self._sample is None:
            self.lease.renew(self.call_timeout)
        else:
            self.lease.peek(*self._sample, self.call_timeout)

    @property
    def _continues(self) -> bool:
        """True unless the session ended or lost its connection."""
        return self.ended is None and self.suspended is None

    def _require_open(self) -> None:
        """Raises :class:`StoreUnavailable` if the session takes no work."""
        if self.ended is not None:
            raise StoreUnavailable(f"the session ended: {self.ended}")
        if self.joined:
            raise StoreUnavailable("this process joined a lease, whose owner makes the requests")
        if self.suspended is not None:
            raise StoreUnavailable(f"until the store is back: {self.suspended}")
        if not self._keeper.holds:
            raise StoreUnavailable("the lease was not renewed in time")

    # Holds.

    def hold(self) -> None:
        """Counts a new hold. Call it only within :meth:`request`."""
        with self._monitor:
            self._holds += 1

    def leave(self) -> None:
        """Counts an ended hold."""
        with self._monitor:
            self._holds -= 1
            if self._holds == 0:
                self._monitor.notify_all()

    def wait_for_device(self) -> None:
        """Waits for the caller's device work, as configured, and raises the wait's errors."""
        (self._config.wait_for_device or self.extents.wait_for_devices)()

    def checksums_of(self, pages: Sequence[PageRef]) -> list[int]:
        """Returns the checksums of the pages' bytes, as configured."""
        return checksums_of(self.extents.get, pages, wanted=self._config.page_checksums)

    def flush(self, timeout: float) -> bool:
        """Waits until the store has all releases; returns False after ``timeout`` seconds."""
        return self._sender.flush(timeout)

    # Namespaces, which the connector's thread opens.

    def open_namespace(self, key: NamespaceKey) -> None:
        """Opens a namespace, waits until its extents are acknowledged, and notes the result.

        The result is an error if this process can map none of the extents. A failure that
        may pass is raised and not noted.
        """
        deadline = Deadline(self._config.connect_timeout)
        try:
            opened = self.lease.open_namespace(*key, deadline.remaining())
        except SESSION_OVER as error:
            raise self._over(error) from None
        with self._monitor:
            settled = self._monitor.wait_for(
                lambda: not self._continues or self.extents.settled(opened.extent_ids),
                deadline.remaining(),
            )
        if not settled or not self._continues:
            raise StoreTimedOut("the namespace's extents were not acknowledged in time")
        found = OpenedNamespace(opened.namespace_id, opened.arena_id, key.layout.page_tokens)
        self.note_namespace(key, self.extents.refusal(opened.extent_ids) or found)

    def note_namespace(self, key: NamespaceKey, what: OpenedNamespace | StoreError | None) -> None:
        """Notes a namespace, or why it cannot be opened. None opens it again."""
        with self._monitor:
            if what is None:
                self.namespaces.pop(key, None)
            else:
                self.namespaces[key] = what
            self._monitor.notify_all()

    # The end.

    def finish(self) -> None:
        """Gives up the memory and, in the background, the lease. The session must be drained.

        The connection stays open while views keep some of the memory mapped.
        """
        assert self.drained
        self.extents.close()
        self._sender.finish()

    def join(self, timeout: float) -> bool:
        """Waits after :meth:`finish` until the lease is revoked; returns whether it is."""
        return self._sender.join(timeout)

    def abandon(self) -> None:
        """Sends nothing more: the store is gone, or takes the rest back when this process ends."""
        self._sender.abandon()
        self._close()

    def _close(self) -> None:
        self._connection.close()
        self.calls.close()
