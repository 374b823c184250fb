"""The process at the other end of a unix socket, as the kernel reports it."""

import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import PeerRefused

# From asm-generic/socket.h of Linux 6.5; Python has no name for it yet.
SO_PEERPIDFD = 77
# struct ucred: pid, uid, gid.
UCRED = struct.Struct("iII")
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True)
class Peer:
    """A process that connected. Its ``pid`` is 0 if this pid namespace does not see it.

    The peer owns its ``pidfd``, which names the process even if its pid is used again. ``close``
    closes it.
    """

    pid: int
    uid: int
    pidfd: int

    def close(self) -> None:
        """Closes the pidfd; once."""
        os.close(self.pidfd)


def overflow_uid() -> int:
    """Returns the uid that the kernel reports for all uids outside this user namespace."""
    return int(OVERFLOW_UID.read_text(encoding="ascii"))


def identify(connection: socket.socket, *, overflow: int) -> Peer:
    """Returns the peer of a connection, as the kernel recorded it when it connected.

    Raises :class:`PeerRefused` for a peer with the ``overflow`` uid, which may be anybody's, and
    for one whose process cannot be watched.
    """
    pid, uid, _ = UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    )
    if uid == overflow:
        raise PeerRefused(why="the peer's uid is the overflow uid", uid=overflow)
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise PeerRefused(why="the peer's process is gone", pid=pid) from error
        pidfd = watch(pid)
    return Peer(pid, uid, pidfd)


def watch(pid: int) -> int:
    """Returns a pidfd of a pid, for kernels without the pidfd of a peer.

    Raises :class:`PeerRefused` for a process that is gone or not visible here.
    """
    if pid == 0:
        raise PeerRefused(why="the peer is in another pid namespace", pid=pid)
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise PeerRefused(why="the peer's process is gone", pid=pid) from error
