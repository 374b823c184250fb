"""The replacement of a running server, which serves while this one prepares itself."""

import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from kvstore.errors import LimitExceeded
from kvstore.holder.carrier import CarrierFailed
from kvstore.rpc.attach.frames import MAX_DESCRIPTORS, Frame, FrameReader, FrameWriter
from kvstore.succession.clean_start import CleanStart
from kvstore.succession.inheritance import MakeCache
from kvstore.succession.store_succession import Succession
from kvstore.v1 import attach_pb2

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The signal by which a server asks another one for its memory. It has no effect unless the sender
# holds the folder's ReplacementLock.
TAKE = signal.SIGUSR1
# Seconds for each answer of the running server. One that is stopped gives none.
ANSWER_SECONDS = 3.0
# Seconds that the holder lets this server wait, beside its own time to answer: 20 in all. That is
# more than STOP_PATIENCE of the server module, after which a server that got TAKE is dead.
YIELD_SECONDS = 10.0
# Seconds that the running server may take to clean its journal, which it does beside its calls.
CLEAN_SECONDS = 2.0
_CREDENTIALS = struct.Struct("iII")


class NotReplaced(Exception):
    """The running server was not replaced; the message says why, and whether it got TAKE."""


def replace_server(
    pid: int | None,
    attach_socket: Path,
    succession: Succession,
    make: MakeCache | None,
    clock: Callable[[], float],
    *,
    yield_seconds: float = YIELD_SECONDS,
) -> None:
    """Reads what the server of a folder has written, asks it for its memory, and waits for that.

    The caller holds the folder's ``ReplacementLock``: the other server serves on if it finds it
    free. ``pid`` is from the folder's lock file, which that server gives up before its memory.
    ``make`` is that of ``Succession.prepare``.

    Raises :class:`NotReplaced`: before the signal if that server does not answer, or if this one
    could not go on with its memory. After the signal it is raised if the memory does not come in
    time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(str(attach_socket))
            pidfd = _pidfd_of(connection, pid)
        except OSError as error:
            raise _unwilling(pid, f"does not answer: {error}") from error
        with closing(os.fdopen(pidfd, "rb", 0)):
            # Its answer proves that the pidfd is that of the process which serves.
            if not _outlives(connection, pid):
                raise _unwilling(pid, "leaves no memory: it runs without --holder, or lost it")
            if not _has_journal(succession):
                raise _unwilling(
                    pid, "keeps its memory at another --holder, or not yet at this one"
                )
            _prepare(pid, succession, make, clock)
            log.info("replacement_begins", pid=pid)
            # If it ended meanwhile, it left its memory as a killed server does.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, TAKE)
            try:
                succession.own(wait_seconds=yield_seconds)
            except CarrierFailed as failed:
                raise _was_asked(pid, str(failed)) from failed
            if not succession.owned:
                raise _was_asked(pid, "no holder answers")


def _prepare(
    pid: int | None, succession: Succession, make: MakeCache | None, clock: Callable[[], float]
) -> None:
    """Reads the memory ahead. Raises NotReplaced if this server could not go on with it."""
    try:
        succession.prepare(make, clock, clean_seconds=CLEAN_SECONDS)
    except CleanStart as clean:
        raise _unwilling(pid, f"has memory that this one cannot go on with: {clean}") from clean
    except CarrierFailed as failed:
        raise _unwilling(pid, f"has its memory at a silent holder: {failed}") from failed


def _unwilling(pid: int | None, why: str) -> NotReplaced:
    return NotReplaced(
        f"the running server (pid {pid or 'unknown'}) {why}. It got no signal. To go on without "
        "its pages, stop it yourself, and start this one without --replace"
    )


def _was_asked(pid: int | None, why: str) -> NotReplaced:
    return NotReplaced(
        f"the running server (pid {pid}) was asked for its memory, which did not come: {why}. "
        "If that server ends, start again: that start goes on with its memory"
    )


def _pidfd_of(connection: socket.socket, pid: int | None) -> int:
    """Returns the pidfd of the process that listens; raises OSError or NotReplaced.

    The number in the file is of the server's pid namespace, and may be another process's here.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    listening, _, _ = _CREDENTIALS.unpack(credentials)
    if not listening or listening != pid:
        raise _unwilling(pid, "is of another pid namespace, where no signal reaches it")
    return os.pidfd_open(listening)


def _outlives(connection: socket.socket, pid: int | None) -> bool:
    """Returns whether the server says that its memory outlives it. It cleans its journal then."""
    writer = FrameWriter(connection)
    reader = FrameReader(connection, max_descriptors=MAX_DESCRIPTORS)
    hello = attach_pb2.Hello(
        protocol_version=1, display_name="kvstore-server --replace", replaces=True
    )
    try:
        writer.push(attach_pb2.ClientFrame(hello=hello).SerializeToString())
        writer.flush()
        frame = reader.read()
        assert isinstance(frame, Frame)  # the socket waits
        return attach_pb2.ServerFrame.FromString(frame.payload).welcome.outlives
    except (OSError, EOFError, LimitExceeded, DecodeError) as error:
        raise _unwilling(pid, f"does not answer: {error}") from error
    finally:
        reader.close()
        writer.close()


def _has_journal(succession: Succession) -> bool:
    """Returns whether a journal is in the holder of this server."""
    with suppress(CarrierFailed):
        return succession.finds_journal()
    return False
