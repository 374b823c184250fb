"""Who is at the other end of a unix socket: what the kernel says, and whom we refuse."""

import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import PeerRefused

# asm-generic/socket.h; Python has no name for it yet. Linux 6.5.
SO_PEERPIDFD = 77
# struct ucred: pid, uid, gid.
UCRED = struct.Struct("iII")
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True)
class Peer:
    """A process that connected. ``pid`` is 0 where this pid namespace does not see it.

    ``pidfd`` is this object's own, and names the process whatever becomes of its
    pid; ``close`` it.
    """

    pid: int
    uid: int
    pidfd: int

    def close(self) -> None:
        """Closes the pidfd; once."""
        os.close(self.pidfd)


def overflow_uid() -> int:
    """Returns the uid that stands for all uids which this user namespace does not map."""
    return int(OVERFLOW_UID.read_text(encoding="ascii"))


def identify(connection: socket.socket, *, overflow: int) -> Peer:
    """Returns who connected, by what the kernel noted when it did.

    Raises :class:`PeerRefused` for a peer with the ``overflow`` uid, which might
    be anybody, and for one whose process cannot be watched.
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
    """Returns a pidfd by number, for kernels that know no pidfd of a peer.

    Raises :class:`PeerRefused` for a process that is gone or not visible here.
    """
    if pid == 0:
        raise PeerRefused(why="the peer is in another pid namespace", pid=pid)
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise PeerRefused(why="the peer's process is gone", pid=pid) from error
