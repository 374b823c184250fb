"""One connection of the attach socket. It reads and writes frames, and never waits."""

import socket
from contextlib import suppress

from kvstore.errors import KVStoreError
from kvstore.rpc.attach.frames import FrameReader, FrameWriter
from kvstore.rpc.attach.session import AttachSession
from kvstore.rpc.lane import Party
from kvstore.rpc.wire.status import to_status
from kvstore.service.attached_processes import Process
from kvstore.v1 import attach_pb2


class Connection:
    """A peer's socket, which is non-blocking. Only the attach server's thread uses it.

    ``party`` is the peer's session. For a peer that was refused at once it is the error that
    answers its first frame.
    """

    def __init__(
        self,
        connection: socket.socket,
        party: AttachSession | KVStoreError,
        *,
        max_frame_bytes: int,
    ) -> None:
        self._socket = connection
        self._party = party
        self._reader = FrameReader(connection, max_frame_bytes=max_frame_bytes)
        self._writer = FrameWriter(connection)
        self._flushed = True
        self._refused = False

    def fileno(self) -> int:
        """Returns the socket's descriptor."""
        return self._socket.fileno()

    @property
    def process(self) -> Process | None:
        """The process that this connection binds, under a lease that has not ended."""
        return self._party.process if isinstance(self._party, AttachSession) else None

    @property
    def welcomed(self) -> bool:
        """True if the peer said Hello, was accepted, and has not been refused since."""
        session = isinstance(self._party, AttachSession) and self._party.welcomed
        return session and not self._refused

    @property
    def must_write(self) -> bool:
        """True while something waits to be sent. Until it is sent, nothing more is read."""
        return not self._flushed

    @property
    def finished(self) -> bool:
        """True if the peer was refused, and the refusal was sent."""
        return self._refused and self._flushed

    @property
    def lane_of(self) -> Party | None:
        """The owner of the lane that the connection has become, once its peer knows."""
        if isinstance(self._party, AttachSession) and self._flushed and not self._refused:
            return self._party.party
        return None

    def release(self) -> socket.socket:
        """Returns the socket, which is the caller's from now on, and drops the peer; once."""
        if isinstance(self._party, AttachSession):
            self._party.close()
        return self._socket

    def unbind(self) -> None:
        """Drops the connection's process. The peer may bind again, under another lease."""
        if isinstance(self._party, AttachSession):
            self._party.process = None

    def advance(self) -> KVStoreError | None:
        """Sends waiting frames, reads at most one, and announces the extents that are owed.

        Returns the error if it refused the peer. Raises EOFError or OSError if the peer hung up.
        """
        self._flushed = self._writer.flush()
        try:
            if self._flushed and not self._refused:
                self._read()
            self._announce()
        except KVStoreError as error:
            self._refuse(error)
            return error
        return None

    def turn_away(self, error: KVStoreError) -> None:
        """Refuses the peer at once, and sends the refusal if the peer reads."""
        with suppress(OSError):
            self._refuse(error)

    def close(self) -> None:
        """Closes the socket, drops waiting frames, and drops the peer; once."""
        self._reader.close()
        self._writer.close()
        self._socket.close()
        if isinstance(self._party, AttachSession):
            self._party.close()

    def _read(self) -> None:
        frame = self._reader.read()
        if frame is None:
            return
        if isinstance(self._party, KVStoreError):
            raise self._party
        answer = self._party.receive(frame.payload)
        if answer is not None:
            self._push(answer)

    def _announce(self) -> None:
        """Announces what is owed, a frame at a time, so that few descriptors wait here."""
        while self._flushed and isinstance(self._party, AttachSession) and not self._refused:
            announcement = self._party.announce()
            if announcement is None:
                return
            self._push(*announcement)

    def _refuse(self, error: KVStoreError) -> None:
        self._refused = True
        self._push(attach_pb2.ServerFrame(refused=to_status(error)))

    def _push(self, frame: attach_pb2.ServerFrame, descriptors: tuple[int, ...] = ()) -> None:
        self._writer.push(frame.SerializeToString(), descriptors)
        self._flushed = self._writer.flush()
