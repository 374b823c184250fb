"""One epoch of a store, one lease under it, and what is mapped and held there."""

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import NamedTuple, ParamSpec, TypeVar

from kvstore.v1 import attach_pb2, store_pb2
from kvstore_client.attach import AttachConnection
from kvstore_client.backoff import Backoff
from kvstore_client.calls import StoreCalls
from kvstore_client.config import ClientConfig
from kvstore_client.deadline import Deadline
from kvstore_client.errors import (
    SESSION_OVER,
    ForkedClient,
    Internal,
    StoreError,
    StoreRefused,
    StoreTimedOut,
    StoreUnavailable,
)
from kvstore_client.extent_table import ExtentTable
from kvstore_client.identity import NamespaceKey
from kvstore_client.lease_calls import LeaseCalls
from kvstore_client.lease_keeper import LeaseKeeper, LeaseTerm
from kvstore_client.page_ref import PageRef
from kvstore_client.sender import ReleaseSender

P = ParamSpec("P")
T = TypeVar("T")

# Half of the ids are ahead of any start.
FIRST_IDS = 1 << 63

_logger = logging.getLogger(__name__)


class OpenedNamespace(NamedTuple):
    """A namespace as this session knows it."""

    namespace_id: bytes
    arena_id: int


class Bound(NamedTuple):
    """What attaching came to: a lease with this process bound to it."""

    connection: AttachConnection
    calls: StoreCalls
    lease: LeaseCalls
    term: LeaseTerm
    welcome: attach_pb2.Welcome
    limits: store_pb2.Limits


class Session:
    """Lives from attaching until its lease, its connection or its client ends.

    Ended, it takes no new work; matches and reservations that are held stay
    usable, their memory mapped and nobody to recycle it. Once the last of them
    is gone (*drained*), :meth:`finish` gives up the memory and the lease.

    Any thread may use it. Its fields change under ``monitor``, the client's,
    which is never held over I/O or a callback.
    """

    def __init__(
        self, bound: Bound, config: ClientConfig, monitor: Condition, numbers: Iterator[int]
    ) -> None:
        self.lease = bound.lease
        self.calls = bound.calls
        self.store_epoch = bound.welcome.store_epoch
        self.tenant = bound.welcome.tenant
        limit = bound.limits.max_deadline.ToTimedelta().total_seconds()
        self.call_timeout = min(config.call_timeout, limit or config.call_timeout)
        self.namespaces: dict[NamespaceKey, OpenedNamespace | StoreError] = {}
        # Why the last try to open one failed, where another may not.
        self.not_yet: dict[NamespaceKey, StoreError] = {}
        self.ended: StoreError | None = None
        self._config = config
        self._monitor = monitor
        self._pid = os.getpid()
        self._ids = itertools.count(1 + secrets.randbelow(FIRST_IDS))
        self._holds = 0
        self._suspended = False
        self._connection = bound.connection
        self._sender = ReleaseSender(
            bound.lease,
            call_timeout=self.call_timeout,
            backoff=Backoff(config.first_backoff, config.longest_backoff),
            max_batch_size=bound.limits.max_batch_size or 1,
            tell_unmapped=bound.connection.tell_unmapped,
            closed=self._close,
        )
        self.extents = ExtentTable(monitor, numbers, self._sender.unmapped, self.store_epoch)
        self._keeper = LeaseKeeper(bound.lease.renew, self, bound.term)
        self._keeper.start()
        bound.connection.serve(self.extents, self.end)

    # Whether it goes on.

    @property
    def usable(self) -> bool:
        """Whether new work is sent: the lease is held and the store answers."""
        return self.ended is None and not self._suspended and self._keeper.holds

    @property
    def drained(self) -> bool:
        """Whether it ended and nothing is held any more. The monitor may be held."""
        return self.ended is not None and self._holds == 0

    def end(self, reason: StoreError) -> None:
        """Take no new work. Can be repeated: the first reason stays."""
        with self._monitor:
            if self.ended is not None:
                return
            self.ended = reason
            self._monitor.notify_all()
        _logger.info("session_ended", extra={"reason": str(reason)})
        self._keeper.stop()
        self.calls.cancel()
        self._sender.wake()

    def renewed(self) -> None:
        """Note that the store answers: send it requests again."""
        with self._monitor:
            self._suspended = False
            self._monitor.notify_all()
        self._sender.prompt()

    def check_process(self) -> None:
        """Raise :class:`ForkedClient` in a process that is not the session's own."""
        if os.getpid() != self._pid:
            raise ForkedClient("this client belongs to the parent process")

    # Requests.

    def take_id(self) -> int:
        """Return an id for a pin or a reservation, never used before under this lease."""
        return next(self._ids)

    @contextmanager
    def request(
        self, *, pin_ids: Sequence[int] = (), reservation_ids: Sequence[int] = ()
    ) -> Iterator[Deadline]:
        """Bracket a request under the ids that it may take; gives its deadline.

        The memory stays for as long. Where the request fails without a clear
        refusal, what it may have taken is given back in the background. Raises
        :class:`StoreUnavailable` at once where the session takes no work.
        """
        with self._monitor:
            if not self.usable:
                raise self._why_not()
            self._holds += 1
        try:
            yield Deadline(self.call_timeout)
        except BaseException as error:
            if not isinstance(error, StoreRefused) or isinstance(error, Internal):
                self._sender.give_back(pin_ids=pin_ids, reservation_ids=reservation_ids)
            raise
        finally:
            self.leave()

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call of ``lease``; its errors are raised after their meaning is drawn.

        One that says that the lease is over ends the session. After one that was
        not answered in time the store is not asked until it answers a renewal.
        """
        try:
            return call(*args, **kwargs)
        except SESSION_OVER as error:
            self.end(error)
            raise
        except StoreTimedOut:
            self._suspend()
            raise

    def settle(self, deadline: Deadline) -> None:
        """Wait until the store has what was given back before; raises ``StoreUnavailable``.

        Whoever released slots and reserves then finds them there.
        """
        if self._sender.flush(deadline.remaining(), lambda: self.ended is not None):
            return
        if self.ended is not None:
            raise self._why_not()
        self._suspend()
        raise StoreTimedOut("earlier releases are still under way")

    def require_mapped(self, pages: list[PageRef]) -> list[PageRef]:
        """Return ``pages``; raises :class:`StoreUnavailable` for one with no memory here."""
        strange = {each.extent_id for each in pages if self.extents.get(each.extent_id) is None}
        if strange:
            raise StoreUnavailable(f"the answer names extents {sorted(strange)}, not mapped here")
        return pages

    def _suspend(self) -> None:
        with self._monitor:
            self._suspended = True
        self._keeper.prompt()

    def _why_not(self) -> StoreError:
        if self.ended is not None:
            return StoreUnavailable(f"the session ended: {self.ended}")
        if self._suspended:
            return StoreUnavailable("not asked: the store did not answer in time")
        return StoreUnavailable("the lease was not renewed in time")

    # Holds.

    def hold(self) -> None:
        """Count something that is held; only within :meth:`request`."""
        with self._monitor:
            self._holds += 1

    def leave(self) -> None:
        """Count something that is held no more."""
        with self._monitor:
            self._holds -= 1
            if self._holds == 0:
                self._monitor.notify_all()

    def give_back(
        self, *, pin_ids: Sequence[int] = (), reservation_ids: Sequence[int] = ()
    ) -> None:
        """Have the store told, in the background, that these are not used any more."""
        self._sender.give_back(pin_ids=pin_ids, reservation_ids=reservation_ids)

    def wait_for_device(self) -> None:
        """Wait for the caller's device work, as configured; raises what that raises."""
        (self._config.wait_for_device or self.extents.wait_for_devices)()

    def flush(self, timeout: float) -> bool:
        """Wait until what was given back has reached the store; False if it has not."""
        return self._sender.flush(timeout)

    # Namespaces, by the connector's thread.

    def open_namespace(self, key: NamespaceKey) -> None:
        """Open a namespace and note what came of it, after its extents are acknowledged.

        Where this process can map none of them it notes that. Nothing is noted for
        a failure that may pass; it is raised.
        """
        deadline = Deadline(self._config.connect_timeout)
        opened = self.ask(self.lease.open_namespace, *key, deadline.remaining())
        with self._monitor:
            settled = self._monitor.wait_for(
                lambda: self.ended is not None or self.extents.settled(opened.extent_ids),
                deadline.remaining(),
            )
        if not settled or self.ended is not None:
            raise StoreTimedOut("the namespace's extents were not acknowledged in time")
        found = OpenedNamespace(opened.namespace_id, opened.arena_id)
        self.note_namespace(key, self.extents.refusal(opened.extent_ids) or found)

    def note_namespace(self, key: NamespaceKey, what: OpenedNamespace | StoreError | None) -> None:
        """Note a namespace, or why there is none; with None it is opened again."""
        with self._monitor:
            if what is None:
                self.namespaces.pop(key, None)
            else:
                self.namespaces[key] = what
            self._monitor.notify_all()

    # The end.

    def finish(self) -> None:
        """Give up the memory and, in the background, the lease; only when drained."""
        assert self.drained
        self.extents.give_up()
        self._sender.finish()

    def join(self, timeout: float) -> bool:
        """Wait after :meth:`finish` until the store has it; False if it has not."""
        return self._sender.join(timeout)

    def abandon(self) -> None:
        """Leave the rest to this process's death: its store is gone, or it is closing."""
        self._sender.abandon()
        self._close()

    def _close(self) -> None:
        self._connection.close()
        self.calls.close()
