"""The connection of one process to a store's attach socket."""

import contextlib
import logging
import os
import select
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from threading import Lock, Thread
from types import MappingProxyType
from weakref import WeakSet

from kvstore.v1 import attach_pb2, types_pb2
from kvstore_client.calls.blocking_frames import BrokenFrames, close_all, receive_frame, send_frame
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.errors import (
    DeviceUnavailable,
    StoreError,
    StoreTimedOut,
    StoreUnavailable,
    error_of_status,
)
from kvstore_client.fault_points import fault_point
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import MemoryIdentity

PROTOCOL_VERSION = 1

_logger = logging.getLogger(__name__)
_open: "WeakSet[AttachConnection]" = WeakSet()


class ConnectionLost(StoreUnavailable):
    """The server ended the connection, or died, without a refusal."""


class AttachConnection:
    """Says hello, binds a lease, then maps what the store announces.

    One thread calls :meth:`hello`, :meth:`bind` and :meth:`serve`, in that order;
    any thread may call the rest. :meth:`serve` starts a thread that maps extents into the table
    and acknowledges them. The thread calls ``renew`` when the store asks for a renewal. It calls
    ``hung_up`` once, with the reason, when the connection ends. It holds nothing in these calls.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sending = Lock()
        self._aborted = False
        self._reader: Thread | None = None
        _open.add(self)

    def hello(self, display_name: str, *, cuda_mps: bool, deadline: Deadline) -> attach_pb2.Welcome:
        """Connects and returns the store's welcome with a credential; raises ``StoreError``."""
        hello = attach_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            display_name=display_name,
            cuda_mps=cuda_mps,
            knows_renew=True,
        )
        try:
            self._socket.settimeout(deadline.remaining())
            self._socket.connect(str(self._path))
        except OSError as error:
            raise StoreUnavailable(f"no store answers at {self._path}: {error}") from None
        return self._ask(attach_pb2.ClientFrame(hello=hello), "welcome", deadline).welcome

    def bind(
        self,
        lease_id: bytes,
        secret: bytes,
        deadline: Deadline,
        mapped: Mapping[int, MemoryIdentity] = MappingProxyType({}),
    ) -> attach_pb2.Bound:
        """Attaches this process to a lease, with the extents that it has mapped before.

        Raises ``StoreError``.
        """
        bind = attach_pb2.Bind(lease_id=lease_id, lease_secret=secret)
        for extent_id, (device, inode, size_bytes) in mapped.items():
            bind.mapped.add(extent_id=extent_id, device=device, inode=inode, size_bytes=size_bytes)
        return self._ask(attach_pb2.ClientFrame(bind=bind), "bound", deadline).bound

    def serve(
        self,
        table: ExtentTable,
        hung_up: Callable[[StoreError], None],
        renew: Callable[[], None],
    ) -> None:
        """Starts the thread that maps announced extents."""
        self._socket.settimeout(None)
        self._reader = Thread(
            target=self._read, args=(table, hung_up, renew), name="kvstore-attach", daemon=True
        )
        self._reader.start()

    def tell_unmapped(self, extent_ids: list[int]) -> None:
        """Reports to the store that extents are unmapped. Ignores a closed connection."""
        with contextlib.suppress(OSError):
            self._send(attach_pb2.ClientFrame(unmapped=attach_pb2.Unmapped(extent_ids=extent_ids)))

    def abort(self) -> None:
        """Ends every call over the connection. Any thread may call it."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and its thread. Can be repeated. Must not run in ``hung_up``."""
        self.abort()
        if self._reader is not None:
            self._reader.join()
        self._socket.close()

    def close_inherited(self) -> None:
        """Closes a forked child's copy of the socket: the connection is its parent's."""
        self._socket.close()

    def _ask(
        self, frame: attach_pb2.ClientFrame, answer: str, deadline: Deadline
    ) -> attach_pb2.ServerFrame:
        try:
            if self._aborted:
                raise StoreUnavailable("given up by this client")
            self._socket.settimeout(deadline.remaining())
            self._send(frame)
            response, descriptors = receive_frame(self._socket)
        except TimeoutError:
            raise StoreTimedOut("the attach socket did not answer in time") from None
        except (OSError, EOFError, BrokenFrames) as error:
            raise StoreUnavailable(f"the attach socket: {error}") from None
        close_all(descriptors)
        kind = response.WhichOneof("message")
        if kind == "refused":
            raise error_of_status(response.refused)
        if kind != answer:
            raise StoreUnavailable(f"the attach socket answered {kind}, not {answer}")
        return response

    def _send(self, frame: attach_pb2.ClientFrame) -> None:
        with self._sending:
            send_frame(self._socket, frame)

    def _read(
        self,
        table: ExtentTable,
        hung_up: Callable[[StoreError], None],
        renew: Callable[[], None],
    ) -> None:
        try:
            while True:
                self._populate_until_spoken_to(table)
                frame, descriptors = receive_frame(self._socket)
                try:
                    self._take(frame, descriptors, table, renew)
                finally:
                    close_all(descriptors)
        except StoreError as error:
            hung_up(error)
        except (OSError, EOFError) as error:
            hung_up(ConnectionLost(f"the attach connection ended: {error}"))
        except (BrokenFrames, UntrustedExtent) as error:
            hung_up(StoreUnavailable(f"the attach connection ended: {error}"))
        except Exception as error:
            # No extent can be mapped without this thread, so the session ends too.
            _logger.exception("attach_failed")
            hung_up(StoreUnavailable(f"the attach connection ended: {error!r}"))

    def _populate_until_spoken_to(self, table: ExtentTable) -> None:
        """Prepares memory for its first use until the store sends a frame."""
        spoken_to = select.poll()
        spoken_to.register(self._socket, select.POLLIN)
        while not spoken_to.poll(0) and table.populate():
            pass

    def _answer_unmapped(self, extent_ids: Collection[int]) -> None:
        """Reports announced or retired extents that are not mapped, if any exist."""
        if extent_ids:
            self.tell_unmapped(sorted(extent_ids))

    def _take(
        self,
        frame: attach_pb2.ServerFrame,
        descriptors: list[int],
        table: ExtentTable,
        renew: Callable[[], None],
    ) -> None:
        match frame.WhichOneof("message"):
            case "extents":
                fault_point("extent.before")
                mapped = [e.extent_id for e in frame.extents.extents if _map(e, descriptors, table)]
                acknowledge = attach_pb2.Acknowledge(extent_ids=mapped)
                self._send(attach_pb2.ClientFrame(acknowledge=acknowledge))
                self._answer_unmapped(
                    {e.extent_id for e in frame.extents.extents}.difference(mapped)
                )
                fault_point("extent.after")
            case "acknowledged":
                table.acknowledge(frame.acknowledged.extent_ids)
            case "retire":
                self._answer_unmapped(table.retire(frame.retire.extent_ids))
            case "renew":
                renew()
            case "refused":
                raise error_of_status(frame.refused)
            case other:
                raise BrokenFrames(f"{other} is not for a bound process")


def _map(extent: types_pb2.Extent, descriptors: list[int], table: ExtentTable) -> bool:
    """Maps one extent; returns whether it is mapped. Raises ``UntrustedExtent``.

    The store grants no slots in extents that this process has not mapped.
    """
    try:
        return table.add(extent, descriptors)
    except DeviceUnavailable as error:
        why: StoreError = error.with_traceback(None)
    except OSError as error:
        why = StoreUnavailable(f"extent {extent.extent_id} cannot be mapped: {error}")
    fields = {"extent_id": extent.extent_id, "reason": str(why)}
    _logger.warning("extent_not_mapped", extra=fields)
    table.refuse(extent.extent_id, why)
    return False


def _close_inherited() -> None:
    for connection in list(_open):
        connection.close_inherited()


os.register_at_fork(after_in_child=_close_inherited)
