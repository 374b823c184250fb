"""The holder's process: it keeps a store's descriptors, so that memory outlives the server.

Runs as ``python -I -S holder_process.py FOLDER``. The file needs the standard library alone and no
other file of the package, so that it starts at once, stays small and hardly ever has to change.
docs/holder.md describes the messages for other programs.

One thread serves one socket, ``FOLDER/holder.sock`` (AF_UNIX, SOCK_SEQPACKET). Peers of another uid
than the holder's own get no answer. A request is one message, and so is its answer. All numbers
are little-endian. Both begin with version, verb or result, and a count (``HEADER``).

=======  ==================================================  =====================================
verb     request after the header                            answer after the header
=======  ==================================================  =====================================
OWN      ``OWN``, one pidfd of the peer itself               ``FORMER``
MAKE     ``MAKE``, name                                      one entry, its descriptor
PUT      ``count`` entries, as many descriptors              nothing
GET      ``SERIAL``: entries after this one                  ``PAGE``, entries, their descriptors
DROP     ``count`` names, each after its length in a byte    nothing
YIELD    ``SERIAL``: a number for the next owner             nothing
END      nothing                                             nothing; the holder exits
=======  ==================================================  =====================================

An entry is ``ENTRY`` and a name. A refusal has its reason as UTF-8. All verbs but OWN and GET are
the owner's. A process owns once the former owner is dead, as its pidfd says, or has yielded. The
end of a connection proves no death: a stopped process that continues would write again.
"""

import argparse
import fcntl
import os
import re
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

VERSION: Final = 1
SOCKET_NAME: Final = "holder.sock"
FLOCK_NAME: Final = "holder.flock"
# SCM_MAX_FD of the kernel: descriptors of one message.
MOST_DESCRIPTORS: Final = 253
MOST_BYTES: Final = 1 << 16
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
DEFAULT_GRACE_SECONDS: Final = 120.0
DEFAULT_DESCRIPTORS: Final = 1024
# Descriptors besides those that are held: one message's, connections, and the process's own.
MOST_CONNECTIONS: Final = 32
RESERVE: Final = MOST_DESCRIPTORS + 2 * MOST_CONNECTIONS + 32
# Without these a peer could shrink memory under its readers. They are SEAL, SHRINK and GROW.
REQUIRED_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# Some 15 ms, after which other peers are served.
STEP_BYTES: Final = 64 << 20
OWNERS_ALONE: Final = 0o600
FOLDER_MODE: Final = 0o700
OTHERS: Final = 0o077
EXIT_FAILED: Final = 1

HEADER: Final = struct.Struct("<BBH")
OWN: Final = struct.Struct("<QB")
FORMER: Final = struct.Struct("<QQB")
MAKE: Final = struct.Struct("<QI")
SERIAL: Final = struct.Struct("<Q")
PAGE: Final = struct.Struct("<QB")
ENTRY: Final = struct.Struct("<BBIQQQ")
CREDENTIALS: Final = struct.Struct("=3i")


class Verb(IntEnum):
    """The second byte of a request."""

    OWN = 1
    MAKE = 2
    PUT = 3
    GET = 4
    DROP = 5
    YIELD = 6
    END = 7


class Result(IntEnum):
    """The second byte of an answer."""

    DONE = 0
    UNKNOWN_VERSION = 1
    UNKNOWN_VERB = 2
    MALFORMED = 3
    # Another process owns, and is neither dead nor has it yielded.
    OWNED = 4
    # The verb is the owner's, and this peer is not the owner, or no longer.
    NOT_OWNER = 5
    # A descriptor is no sealed memfd and no pidfd, or is not as announced.
    UNSUITABLE = 6
    # The name has another descriptor already.
    TAKEN = 7
    NO_MEMORY = 8
    # The holder may have no more descriptors.
    FULL = 9


class DescriptorKind(IntEnum):
    """The kinds of descriptors that are held."""

    MEMFD = 1
    PIDFD = 2


class Refused(Exception):
    """The holder refuses a request, with a result other than DONE."""

    def __init__(self, result: int, reason: str) -> None:
        self.result = result
        super().__init__(reason)


class DescriptorIdentity(NamedTuple):
    """The properties of a descriptor that stay the same in every process.

    A pidfd has neither seals nor a size. Before Linux 6.9 all pidfds have one inode.
    """

    kind: int
    seals: int
    size_bytes: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> "DescriptorIdentity":
        """Returns a descriptor's. Raises :class:`Refused` if it is no sealed memfd or pidfd."""
        status = os.fstat(descriptor)
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            if pid_of(descriptor) is None:
                raise Refused(
                    Result.UNSUITABLE, "a descriptor is neither a memfd nor a pidfd"
                ) from None
            return cls(DescriptorKind.PIDFD, 0, 0, status.st_dev, status.st_ino)
        if seals & REQUIRED_SEALS != REQUIRED_SEALS:
            raise Refused(
                Result.UNSUITABLE,
                f"a memfd has the seals {seals:#x}, and needs {REQUIRED_SEALS:#x}",
            )
        return cls(DescriptorKind.MEMFD, seals, status.st_size, status.st_dev, status.st_ino)

    def require(self, descriptor: int) -> None:
        """Raises :class:`Refused` unless a descriptor has this identity."""
        found = DescriptorIdentity.of(descriptor)
        if found != self:
            raise Refused(Result.UNSUITABLE, f"announced as {self}, a descriptor is {found}")


def pid_of(descriptor: int) -> int | None:
    """Returns the pid of a pidfd, or None if the descriptor is none.

    The pid is -1 once the process was reaped, and 0 if it is of another pid namespace.
    """
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    pids = [line.removeprefix("Pid:") for line in lines if line.startswith("Pid:")]
    return int(pids[0]) if pids else None


def is_dead(pidfd: int) -> bool:
    """Returns whether the process of a pidfd has ended: the pidfd becomes readable then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class Process(NamedTuple):
    """The identity of a process, as long as it lives.

    ``inode`` is that of its pidfd, or 0 if all pidfds share one. ``pid`` is 0 for a process of
    another pid namespace. If both are 0, the process equals no process, not even itself.
    """

    pid: int
    inode: int

    def same_as(self, other: "Process | None") -> bool:
        """Returns whether both are one living process."""
        return self == other and any(self)


class Former(NamedTuple):
    """The owner before the one that owns now. ``yielded`` is its last number, None if it died."""

    instance: int
    yielded: int | None


class Ownership:
    """The present owner and the one before. Knows no descriptors and no clock.

    ``number`` counts the owners so far. A connection with an earlier number lost its rights.
    ``owner`` is None while nobody owns.
    """

    def __init__(self) -> None:
        self.number = 0
        self.owner: Process | None = None
        self.former = Former(0, None)
        self._last = Former(0, None)

    def claim(self, process: Process, instance: int) -> bool:
        """Makes a process the owner, unless another one is; returns whether it owns now.

        The owner itself claims again from another connection.
        """
        if self.owner is not None:
            return process.same_as(self.owner)
        self.number += 1
        self.owner = process
        self.former = self._last
        self._last = Former(instance, None)
        return True

    def leave(self, yielded: int | None) -> None:
        """Ends the owner's rights: it yielded with a number, or its pidfd says that it is dead."""
        self.owner = None
        self._last = self._last._replace(yielded=yielded)

    def owns(self, number: int) -> bool:
        """Returns whether a connection that got ``number`` has the owner's rights."""
        return self.owner is not None and number == self.number


class MemoryBound(NamedTuple):
    """The bytes that are available according to ``source``."""

    available_bytes: int
    source: str


UNLIMITED: Final = 1 << 60
# Of cgroup v2 and v1: folder, limit, usage, and the page cache that the kernel drops first.
CGROUP_FILES: Final = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def lowest_bound(root: Path = Path("/")) -> MemoryBound:
    """Returns the least memory that the machine or a cgroup of this process has available."""
    lines = _text(root / "proc/meminfo").splitlines()
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    found = [
        MemoryBound(UNLIMITED, "no bound"),
        *(MemoryBound(each, "MemAvailable") for each in free),
    ]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            folder, *files = CGROUP_FILES[1 if controllers else 0]
            own = PurePosixPath(path.lstrip("/"))
            for each in (own, *own.parents):
                found += _cgroup_bound(root / folder / each, *files)
    return min(found)


def _cgroup_bound(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[MemoryBound]:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not most.isdigit() or not used.isdigit() or int(most) >= UNLIMITED:
        return
    statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines())
    free = int(most) - int(used) + int(statistics.get(reclaimable, 0))
    yield MemoryBound(max(free, 0), str(folder / limit))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def new_memfd(name: str, size_bytes: int, seals: int) -> int:
    """Returns a memfd of zeros without pages, which this uid alone can open. Raises ``OSError``."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, OWNERS_ALONE)
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def pack_entry(name: str, identity: DescriptorIdentity) -> bytes:
    """Returns an entry of a message."""
    return ENTRY.pack(len(name), *identity) + name.encode("ascii")


def unpack_entries(count: int, body: bytes) -> Iterator[tuple[str, DescriptorIdentity]]:
    """Yields the entries of a message. Raises ``ValueError`` or ``struct.error``."""
    begin = 0
    for _ in range(count):
        length, *identity = ENTRY.unpack_from(body, begin)
        begin += ENTRY.size
        yield name_in(body[begin : begin + length]), DescriptorIdentity(*identity)
        begin += length
    if begin != len(body):
        raise ValueError(f"{count} entries have {begin} bytes, and {len(body)} came")


def pack_names(names: Iterable[str]) -> bytes:
    """Returns names as a message has them: each after its length."""
    return b"".join(bytes([len(each)]) + each.encode("ascii") for each in names)


def unpack_names(count: int, body: bytes) -> Iterator[str]:
    """Yields the names of a message. Raises ``ValueError`` or ``IndexError``."""
    begin = 0
    for _ in range(count):
        end = begin + 1 + body[begin]
        if end > len(body):
            raise ValueError(f"a name ends at {end}, and {len(body)} bytes came")
        yield name_in(body[begin + 1 : end])
        begin = end


def name_in(text: bytes) -> str:
    """Returns a name of a message; raises ``ValueError`` if no descriptor may have it."""
    name = text.decode("ascii")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name: 1 to 64 letters, digits, dots, dashes, underscores")
    return name


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Returns a message and its descriptors, close-on-exec; an empty one at the end.

    Raises ``OSError``, or :class:`Refused` if this process may not have so many descriptors.
    """
    size = socket.CMSG_SPACE(MOST_DESCRIPTORS * array("i").itemsize)
    message, ancillary, flags, _ = connection.recvmsg(MOST_BYTES, size, socket.MSG_CMSG_CLOEXEC)
    descriptors = array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        close_all(descriptors)
        raise Refused(Result.FULL, "a message was cut off: too few descriptors are free here")
    return message, list(descriptors)


def send(connection: socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Sends a message with copies of descriptors. Raises ``OSError``."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
    connection.sendmsg([message], rights if descriptors else [], socket.MSG_NOSIGNAL)


def close_all(descriptors: Iterable[int]) -> None:
    """Closes descriptors."""
    for each in descriptors:
        os.close(each)


class _Entry(NamedTuple):
    descriptor: int
    identity: DescriptorIdentity
    # In the order in which descriptors came, which is also that of the table.
    serial: int


class _Connection:
    """A peer. ``pending`` is true from a request whose answer comes later until that answer."""

    def __init__(self, peer: socket.socket, pid: int) -> None:
        self.socket = peer
        self.pid = pid
        self.number = 0
        self.pending = False


class _Claim(NamedTuple):
    """A process that waits until it may own."""

    connection: _Connection
    process: Process
    pidfd: int
    instance: int


class _Allocation:
    """A memfd that gets its pages step by step."""

    def __init__(self, connection: _Connection, name: str, descriptor: int, size: int) -> None:
        self.connection = connection
        self.name = name
        self.descriptor = descriptor
        self.size_bytes = size
        self.done_bytes = 0


class DescriptorHolder:
    """The state of the process, and the loop that serves it. One thread.

    ``most_descriptors`` bounds the held ones. After ``grace_seconds`` without an owner, ``serve``
    returns. Bounds of memory are read below ``root``.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        grace_seconds: float,
        most_descriptors: int,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._grace_seconds = grace_seconds
        self._most_descriptors = most_descriptors
        self._root = root
        self._clock = clock
        self._ownership = Ownership()
        self._owner_pidfd: int | None = None
        self._deadline: float | None = clock() + grace_seconds
        self._held: dict[str, _Entry] = {}
        self._serial = 0
        self._connections: dict[int, _Connection] = {}
        self._claims: list[_Claim] = []
        self._allocations: deque[_Allocation] = deque()
        self._ended = False
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        listener.settimeout(0)
        # Before Linux 6.9 a pidfd has the inode of every anonymous file, such as this one.
        anonymous = select.epoll()
        self._shared_inode = os.fstat(anonymous.fileno()).st_ino
        anonymous.close()
        self._verbs = {
            Verb.OWN: self._own,
            Verb.MAKE: self._make,
            Verb.PUT: self._put,
            Verb.GET: self._get,
            Verb.DROP: self._drop,
            Verb.YIELD: self._yield,
            Verb.END: self._end,
        }

    def wake_by(self, descriptor: int) -> None:
        """Ends each wait of ``serve`` once a descriptor can be read, which nobody then reads."""
        self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        """Serves until END, or until nobody has owned for the grace."""
        while not self._ended:
            timeout = self._timeout()
            if timeout is not None and timeout < 0:
                say(f"ends: no owner for {self._grace_seconds:g} seconds")
                return
            for descriptor, _ in self._poll.poll(None if timeout is None else timeout * 1000):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._connections:
                    self._serve(self._connections[descriptor])
            self._notice_death()
            if self._allocations:
                self._allocate(self._allocations[0])

    def _timeout(self) -> float | None:
        """Returns the seconds until there is something to do; negative once the grace is over."""
        if self._allocations:
            return 0.0
        return None if self._deadline is None else self._deadline - self._clock()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            peer, _ = self._listener.accept()
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid, uid, _ = CREDENTIALS.unpack(credentials)
            if uid != os.geteuid() or len(self._connections) == MOST_CONNECTIONS:
                say(f"refuses a connection of pid {pid}, uid {uid}")
                peer.close()
                return
            peer.settimeout(0)
            self._connections[peer.fileno()] = _Connection(peer, pid)
            self._poll.register(peer, select.POLLIN)

    def _serve(self, connection: _Connection) -> bool:
        """Answers one message; returns False if none is there, or the connection has ended."""
        if connection.pending:
            # Only its end is reported meanwhile.
            self._forget(connection)
            return False
        descriptors: list[int] = []
        try:
            message, descriptors = receive(connection.socket)
            if not message:
                self._forget(connection)
                return False
            self._dispatch(connection, message, descriptors)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The peer ended with unread answers. The messages that it sent before come next.
            return True
        except Refused as refusal:
            self._answer(connection, refusal.result, str(refusal).encode())
        except OSError:
            self._forget(connection)
            return False
        finally:
            close_all(descriptors)
        return True

    def _dispatch(self, connection: _Connection, message: bytes, descriptors: list[int]) -> None:
        """Does a request. Removes descriptors that it keeps from the list."""
        try:
            version, verb, count = HEADER.unpack_from(message)
            if version != VERSION:
                raise Refused(Result.UNKNOWN_VERSION, f"version {version}, this is {VERSION}")
            if verb not in self._verbs:
                raise Refused(Result.UNKNOWN_VERB, f"verb {verb} is unknown")
            self._verbs[verb](connection, count, message[HEADER.size :], descriptors)
        except (struct.error, ValueError, IndexError) as error:
            raise Refused(Result.MALFORMED, str(error)) from error

    def _answer(
        self,
        connection: _Connection,
        result: int,
        body: bytes = b"",
        *,
        count: int = 0,
        descriptors: Sequence[int] = (),
    ) -> None:
        if connection.pending:
            connection.pending = False
            self._poll.modify(connection.socket, select.POLLIN)
        try:
            send(connection.socket, HEADER.pack(VERSION, result, count) + body, descriptors)
        except BrokenPipeError:
            # The peer has ended. Messages that it sent before may still be there to read.
            pass
        except OSError:
            # A peer that does not read its answers is as one that has gone.
            self._forget(connection)

    def _defer(self, connection: _Connection) -> None:
        connection.pending = True
        self._poll.modify(connection.socket, 0)

    def _forget(self, connection: _Connection) -> None:
        """Ends a connection, with what it waits for. Its process may still own."""
        if self._connections.pop(connection.socket.fileno(), None) is None:
            return
        self._poll.unregister(connection.socket)
        connection.socket.close()
        for each in [each for each in self._claims if each.connection is connection]:
            self._claims.remove(each)
            os.close(each.pidfd)
        self._cancel([each for each in self._allocations if each.connection is connection])

    def _cancel(self, allocations: Iterable[_Allocation]) -> None:
        for each in allocations:
            self._allocations.remove(each)
            os.close(each.descriptor)

    # Who owns.

    def _own(self, connection: _Connection, _: int, body: bytes, descriptors: list[int]) -> None:
        instance, waits = OWN.unpack(body)
        if len(descriptors) != 1 or pid_of(descriptors[0]) != connection.pid:
            raise Refused(Result.UNSUITABLE, "OWN comes with one descriptor: the peer's own pidfd")
        pidfd = descriptors[0]
        if is_dead(pidfd):
            raise Refused(Result.UNSUITABLE, "the process is dead")
        self._notice_death()
        inode = os.fstat(pidfd).st_ino
        process = Process(connection.pid, 0 if inode == self._shared_inode else inode)
        claim = _Claim(connection, process, descriptors.pop(), instance)
        if self._grant(claim):
            return
        if not waits:
            os.close(claim.pidfd)
            owner = self._ownership.owner
            raise Refused(Result.OWNED, f"pid {owner.pid if owner else 0} owns, and lives: stop it")
        self._claims.append(claim)
        self._defer(connection)

    def _grant(self, claim: _Claim) -> bool:
        """Makes a process the owner and tells it, if that is possible now."""
        number = self._ownership.number
        if not self._ownership.claim(claim.process, claim.instance):
            return False
        if self._ownership.number == number:
            os.close(claim.pidfd)
        else:
            self._watch(claim.pidfd)
            self._deadline = None
            say(f"instance {claim.instance} owns (pid {claim.process.pid})")
        claim.connection.number = self._ownership.number
        former = self._ownership.former
        body = FORMER.pack(former.instance, former.yielded or 0, former.yielded is not None)
        self._answer(claim.connection, Result.DONE, body)
        return True

    def _watch(self, pidfd: int | None) -> None:
        if self._owner_pidfd is not None:
            self._poll.unregister(self._owner_pidfd)
            os.close(self._owner_pidfd)
        self._owner_pidfd = pidfd
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)

    def _notice_death(self) -> None:
        """Ends the rights of an owner that died, after doing all that it still sent."""
        if self._owner_pidfd is None or not is_dead(self._owner_pidfd):
            return
        for each in list(self._connections.values()):
            if self._ownership.owns(each.number):
                while not each.pending and self._serve(each):
                    pass
        # Its last message may have been YIELD.
        if self._ownership.owner is not None:
            say("the owner is dead")
            self._leave(None)

    def _leave(self, yielded: int | None) -> None:
        number = self._ownership.number
        self._ownership.leave(yielded)
        self._watch(None)
        self._cancel([each for each in self._allocations if each.connection.number == number])
        self._deadline = self._clock() + self._grace_seconds
        while self._claims and self._ownership.owner is None:
            claim = self._claims.pop(0)
            if is_dead(claim.pidfd):
                os.close(claim.pidfd)
            else:
                self._grant(claim)

    def _yield(self, connection: _Connection, _: int, body: bytes, __: list[int]) -> None:
        self._require_owner(connection)
        (sequence,) = SERIAL.unpack(body)
        say("the owner leaves its memory to the next one")
        self._answer(connection, Result.DONE)
        self._leave(sequence)

    def _end(self, connection: _Connection, _: int, __: bytes, ___: list[int]) -> None:
        self._require_owner(connection)
        say("ends: the owner sent END")
        self._answer(connection, Result.DONE)
        self._ended = True

    def _require_owner(self, connection: _Connection) -> None:
        if not self._ownership.owns(connection.number):
            raise Refused(
                Result.NOT_OWNER, "this process does not own the descriptors, or no longer"
            )

    # The descriptors.

    def _put(
        self, connection: _Connection, count: int, body: bytes, descriptors: list[int]
    ) -> None:
        self._require_owner(connection)
        entries = list(unpack_entries(count, body))
        if len(entries) != len(descriptors) or len(dict(entries)) != len(entries):
            raise Refused(
                Result.MALFORMED, "PUT needs a descriptor and another name for each entry"
            )
        for (name, identity), descriptor in zip(entries, descriptors, strict=True):
            identity.require(descriptor)
            self._require_free(name, identity)
        self._require_descriptors(sum(name not in self._held for name, _ in entries))
        for name, identity in entries:
            self._hold(name, descriptors.pop(0), identity)
        self._answer(connection, Result.DONE)

    def _hold(self, name: str, descriptor: int, identity: DescriptorIdentity) -> None:
        replaced = self._held.pop(name, None)
        if replaced is not None:
            os.close(replaced.descriptor)
        self._serial += 1
        self._held[name] = _Entry(descriptor, identity, self._serial)

    def _require_free(self, name: str, identity: DescriptorIdentity | None = None) -> None:
        held = self._held.get(name)
        allocated = any(each.name == name for each in self._allocations)
        if allocated or (held is not None and held.identity != identity):
            raise Refused(Result.TAKEN, f"{name} is held already, with another identity")

    def _require_descriptors(self, count: int) -> None:
        if len(self._held) + len(self._allocations) + count > self._most_descriptors:
            raise Refused(
                Result.FULL,
                f"{len(self._held)} descriptors are held, of at most {self._most_descriptors}: "
                "raise the holder's hard limit of open files",
            )

    def _get(self, connection: _Connection, _: int, body: bytes, __: list[int]) -> None:
        (after,) = SERIAL.unpack(body)
        later = [(name, each) for name, each in self._held.items() if each.serial > after]
        found = later[:MOST_DESCRIPTORS]
        last = found[-1][1].serial if found else after
        entries = b"".join(pack_entry(name, each.identity) for name, each in found)
        self._answer(
            connection,
            Result.DONE,
            PAGE.pack(last, len(later) > len(found)) + entries,
            count=len(found),
            descriptors=[each.descriptor for _, each in found],
        )

    def _drop(self, connection: _Connection, count: int, body: bytes, _: list[int]) -> None:
        self._require_owner(connection)
        for name in list(unpack_names(count, body)):
            entry = self._held.pop(name, None)
            if entry is not None:
                os.close(entry.descriptor)
        self._answer(connection, Result.DONE)

    def _make(self, connection: _Connection, _: int, body: bytes, __: list[int]) -> None:
        self._require_owner(connection)
        size_bytes, seals = MAKE.unpack_from(body)
        name = name_in(body[MAKE.size :])
        self._require_free(name)
        self._require_descriptors(1)
        if size_bytes == 0 or seals & REQUIRED_SEALS != REQUIRED_SEALS:
            raise Refused(
                Result.MALFORMED, f"a memfd needs a size, and the seals {REQUIRED_SEALS:#x}"
            )
        self._require_memory(name, size_bytes)
        try:
            descriptor = new_memfd(name, size_bytes, seals)
        except OSError as error:
            raise Refused(Result.NO_MEMORY, f"{name}: {error.strerror}") from error
        self._allocations.append(_Allocation(connection, name, descriptor, size_bytes))
        self._defer(connection)

    def _require_memory(self, name: str, size_bytes: int) -> None:
        bound = lowest_bound(self._root)
        if size_bytes > bound.available_bytes:
            raise Refused(
                Result.NO_MEMORY,
                f"{name} needs {size_bytes} bytes, and {bound.source} has {bound.available_bytes}",
            )

    def _allocate(self, allocation: _Allocation) -> None:
        """Allocates one step of a memfd's pages, and answers after the last.

        Memory is compared before each step, because the kernel grants more and kills later.
        """
        connection, begin = allocation.connection, allocation.done_bytes
        left = allocation.size_bytes - begin
        try:
            self._require_memory(allocation.name, left)
            os.posix_fallocate(allocation.descriptor, begin, min(STEP_BYTES, left))
        except (Refused, OSError) as error:
            self._cancel([allocation])
            reason = str(error) if isinstance(error, Refused) else f"{allocation.name}: {error}"
            self._answer(connection, Result.NO_MEMORY, reason.encode())
            return
        allocation.done_bytes += min(STEP_BYTES, left)
        if allocation.done_bytes == allocation.size_bytes:
            self._allocations.popleft()
            identity = DescriptorIdentity.of(allocation.descriptor)
            self._hold(allocation.name, allocation.descriptor, identity)
            self._answer(
                connection,
                Result.DONE,
                pack_entry(allocation.name, identity),
                count=1,
                descriptors=[allocation.descriptor],
            )


# The program.


class Unusable(Exception):
    """The folder, the limits or the command line are not what the holder needs."""


def holder_command(arguments: Sequence[str]) -> list[str]:
    """Returns the command line that runs this file, isolated from the environment's packages."""
    return [sys.executable, "-I", "-S", os.path.realpath(__file__), *arguments]


def say(message: str) -> None:
    """Writes a line to stderr."""
    with suppress(OSError):
        sys.stderr.write(f"kvstore-holder: {message}\n")
        sys.stderr.flush()


def allow_descriptors(wanted: int) -> int:
    """Raises the limit of open files to the hard limit; returns how many can be held.

    Raises :class:`Unusable` if these are fewer than ``wanted``.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < wanted + RESERVE:
        raise Unusable(
            f"the hard limit of open files is {most}, but {wanted} descriptors and {RESERVE} of "
            f"the holder's own need {wanted + RESERVE}: raise LimitNOFILE (systemd), "
            "--ulimit nofile (containers) or ulimit -Hn, or set --descriptors lower"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most - RESERVE


def prepare(folder: Path) -> None:
    """Makes the folder, or checks that only this uid has access. Raises :class:`Unusable`."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise Unusable(f"{folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise Unusable(f"{folder} is a link: name the folder itself")
    if status.st_uid != os.geteuid():
        raise Unusable(f"{folder} belongs to uid {status.st_uid}: name another folder")
    if stat.S_IMODE(status.st_mode) & OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise Unusable(f"{folder} has mode {mode:04o}, open to others: chmod 700 it")


def lock(folder: Path) -> None:
    """Locks the folder while this process lives. Raises :class:`Unusable` if another has it."""
    descriptor = os.open(folder / FLOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNERS_ALONE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise Unusable(
            f"another kvstore-holder (pid {pid or 'unknown'}) serves {folder}: name another folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def listen(folder: Path) -> socket.socket:
    """Returns the socket that peers connect to. The caller has the folder's lock."""
    path = folder / SOCKET_NAME
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise Unusable(f"{path} cannot be bound: {error}") from error
    path.chmod(OWNERS_ALONE)
    listener.listen(MOST_CONNECTIONS)
    return listener


def run(options: argparse.Namespace) -> None:
    """Runs the holder until it ends. Raises :class:`Unusable`."""
    most = allow_descriptors(options.descriptors)
    prepare(options.folder)
    lock(options.folder)
    holder = DescriptorHolder(
        listen(options.folder), grace_seconds=options.holder_grace, most_descriptors=most
    )
    # A signal that comes right before a wait does not interrupt it, and its handler would run after
    # the wait.
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    holder.wake_by(woken)
    say(f"serves {options.folder} for uid {os.geteuid()}, with up to {most} descriptors")
    if options.background:
        os.write(options.background, b"1")
        os.close(options.background)
    holder.serve()
    (options.folder / SOCKET_NAME).unlink(missing_ok=True)


def detach() -> int:
    """Continues as a child in a new session. Returns a pipe's end, to write to once it serves.

    The parent waits for that write and exits with 0, or with the status of a child that ended.
    """
    told, tells = os.pipe()
    child = os.fork()
    if child != 0:
        os.close(tells)
        if os.read(told, 1):
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) or EXIT_FAILED)
    os.close(told)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return tells


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a command line, or exits with status 2."""
    parser = argparse.ArgumentParser(
        prog="kvstore-holder",
        description="Keeps the descriptors of a store's memory, so that it outlives the server.",
    )
    parser.add_argument(
        "folder", type=Path, help="folder of the socket. The holder makes it with mode 0700"
    )
    parser.add_argument(
        "--holder-grace",
        type=float,
        default=DEFAULT_GRACE_SECONDS,
        metavar="SECONDS",
        help="seconds without a server after which the holder frees all memory, and ends "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--descriptors",
        type=int,
        default=DEFAULT_DESCRIPTORS,
        metavar="COUNT",
        help="least number of descriptors that the holder has to be able to keep, or it does not "
        "start: two for each extent, one for each process (default: %(default)d)",
    )
    parser.add_argument(
        "--background",
        action="store_true",
        help="return once the socket accepts connections, and go on in the background",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the holder; returns the exit status."""
    # The end needs no cleaning up: the kernel closes every descriptor. But it ignores SIGTERM for
    # the first process of a container, unless a handler is set.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    options = parse(arguments)
    options.folder = options.folder.absolute()
    options.background = detach() if options.background else 0
    try:
        run(options)
    except Unusable as unusable:
        say(str(unusable))
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
