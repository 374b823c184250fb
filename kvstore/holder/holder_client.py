"""The connection of a server to a holder's process, and the start of one."""

import math
import os
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from select import POLLHUP, POLLIN, poll
from threading import Lock, RLock
from typing import NamedTuple

import structlog

from kvstore.holder import holder_process as wire
from kvstore.holder.carrier import (
    CarriedDescriptor,
    CarrierFull,
    CarrierLost,
    CarrierOwned,
    CarrierRefused,
)
from kvstore.holder.holder_process import DescriptorIdentity, Former, Result, Verb

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ERRORS: Mapping[int, type[CarrierRefused]] = {
    Result.OWNED: CarrierOwned,
    Result.NOT_OWNER: CarrierOwned,
    Result.NO_MEMORY: CarrierFull,
    Result.FULL: CarrierFull,
}
# An answer takes microseconds. A holder that is silent for this long is stopped.
ANSWER_SECONDS = 10.0
# Deposits repeat later, so nobody waits longer for one: a server is not ready while one of its
# threads stands still for three seconds.
DEPOSIT_SECONDS = 2.0
# A holder allocates 4 GiB a second; a loaded machine is slower.
SLOWEST_BYTES_A_SECOND = 256 << 20
LONGEST_SECONDS = 3600.0
START_SECONDS = 30.0


class HolderConnection:
    """One connection to a holder. One thread at a time uses it.

    After :class:`CarrierLost` or a wait that ended, the connection is useless: close it.
    """

    def __init__(self, folder: Path, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Connects to the holder that serves a folder. Raises :class:`CarrierLost`."""
        self._answer_seconds = answer_seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(answer_seconds)
            self._socket.connect(str(folder / wire.SOCKET_NAME))
        except OSError as error:
            self._socket.close()
            raise CarrierLost(f"no holder serves {folder}: {error}") from error

    def own(self, instance: int, wait_seconds: float = 0.0) -> Former:
        """Claims ownership; see :class:`DescriptorCarrier`."""
        pidfd = os.pidfd_open(os.getpid())
        try:
            body = wire.OWN.pack(instance, wait_seconds > 0)
            _, answer, _ = self._request(Verb.OWN, body, [pidfd], seconds=wait_seconds)
        finally:
            os.close(pidfd)
        former, yielded, has_yielded = wire.FORMER.unpack(answer)
        return Former(former, yielded if has_yielded else None)

    def descriptors(self) -> Iterator[tuple[str, CarriedDescriptor]]:
        """Yields all descriptors. Raises :class:`CarrierRefused` for one that is not as announced.

        A caller that stops early loses no descriptor that it did not get: they are closed.
        """
        after, more = 0, True
        while more:
            count, answer, descriptors = self._request(Verb.GET, wire.SERIAL.pack(after))
            try:
                after, more = wire.PAGE.unpack_from(answer)
                entries = list(wire.unpack_entries(count, answer[wire.PAGE.size :]))
                if len(entries) != len(descriptors):
                    raise CarrierRefused(f"{count} names came with {len(descriptors)} descriptors")
                for name, identity in entries:
                    _require(name, identity, descriptors[0])
                    yield name, CarriedDescriptor(descriptors.pop(0), identity)
            finally:
                wire.close_all(descriptors)

    def make(self, name: str, size_bytes: int) -> CarriedDescriptor:
        """Asks the holder for a new memfd; see :class:`DescriptorCarrier`."""
        _, answer, descriptors = self._request(
            Verb.MAKE,
            wire.MAKE.pack(size_bytes, wire.REQUIRED_SEALS) + name.encode(),
            seconds=min(size_bytes / SLOWEST_BYTES_A_SECOND, LONGEST_SECONDS),
        )
        try:
            ((_, identity),) = wire.unpack_entries(1, answer)
            (descriptor,) = descriptors
            _require(name, identity, descriptor)
            if identity.size_bytes != size_bytes:
                raise CarrierRefused(f"{name} has {identity.size_bytes} bytes, not {size_bytes}")
            return CarriedDescriptor(descriptors.pop(), identity)
        finally:
            wire.close_all(descriptors)

    def put(self, entries: Sequence[tuple[str, CarriedDescriptor]]) -> None:
        """Deposits descriptors, at most 253; all or none."""
        body = b"".join(wire.pack_entry(name, each.identity) for name, each in entries)
        descriptors = [each.descriptor for _, each in entries]
        self._request(Verb.PUT, body, descriptors, count=len(entries), most=DEPOSIT_SECONDS)

    def drop(self, names: Sequence[str]) -> None:
        """Ends deposits, at most 253. The holder need not have them."""
        self._request(Verb.DROP, wire.pack_names(names), count=len(names), most=DEPOSIT_SECONDS)

    def give_up(self, sequence: int) -> None:
        """Ends this process's ownership."""
        self._request(Verb.YIELD, wire.SERIAL.pack(sequence))

    def end(self) -> None:
        """Ends the holder."""
        self._request(Verb.END)

    def has_ended(self) -> bool:
        """Returns whether the holder closed the connection or died."""
        waiting = poll()
        waiting.register(self._socket, POLLIN)
        # Nothing but an end comes unasked.
        return any(event & (POLLHUP | POLLIN) for _, event in waiting.poll(0))

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _request(
        self,
        verb: Verb,
        body: bytes = b"",
        descriptors: Sequence[int] = (),
        *,
        count: int = 0,
        seconds: float = 0.0,
        most: float = math.inf,
    ) -> tuple[int, bytes, list[int]]:
        """Returns the count, body and descriptors of an answer that comes within the time.

        That is ``seconds`` more than for others, or ``most`` if that is less.
        """
        self._socket.settimeout(min(self._answer_seconds + seconds, most))
        header = wire.HEADER.pack(wire.VERSION, verb, count)
        try:
            wire.send(self._socket, header + body, descriptors)
            answer, received = wire.receive(self._socket)
        except OSError as error:
            raise CarrierLost(f"the holder does not answer: {error}") from error
        except wire.Refused as refused:
            raise CarrierFull(str(refused)) from refused
        if len(answer) < wire.HEADER.size:
            wire.close_all(received)
            raise CarrierLost("the holder hung up")
        _, result, number = wire.HEADER.unpack_from(answer)
        rest = answer[wire.HEADER.size :]
        if result != Result.DONE:
            wire.close_all(received)
            raise ERRORS.get(result, CarrierRefused)(rest.decode(errors="replace"))
        return number, rest, received


def _require(name: str, identity: DescriptorIdentity, descriptor: int) -> None:
    try:
        identity.require(descriptor)
    except wire.Refused as refused:
        raise CarrierRefused(f"{name} is not what the holder announced: {refused}") from refused


def start_holder(folder: Path, *, grace_seconds: float = wire.DEFAULT_GRACE_SECONDS) -> None:
    """Starts a holder in a session of its own; returns once it accepts connections.

    A service manager or a container that ends this process's group of processes ends it as well.
    Raises :class:`CarrierLost` if it does not start, for example because another serves the folder.
    """
    command = wire.holder_command([str(folder), f"--holder-grace={grace_seconds}", "--background"])
    try:
        status = subprocess.run(  # noqa: S603  # our own interpreter and file
            command, stdin=subprocess.DEVNULL, timeout=START_SECONDS, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CarrierLost(f"the holder does not start: {error}") from error
    if status != 0:
        raise CarrierLost(f"the holder does not start: exit status {status}, its log says why")


class _Deposit(NamedTuple):
    carried: CarriedDescriptor
    # True once the holder of the connection has it.
    acknowledged: bool


class HolderClient:
    """A server's deposits in a holder, which it repeats if the holder dies. Thread-safe.

    A holder that dies alone loses nothing, since this process has every descriptor. ``put`` and
    ``drop`` then return False, and ``restore`` deposits all anew. ``start`` starts a holder if none
    serves the folder; without it, a service manager has to. ``give_up`` and ``end`` are final.
    """

    def __init__(
        self,
        folder: Path,
        *,
        start: Callable[[], None] | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._folder = folder
        self._start = start
        self._answer_seconds = answer_seconds
        self._mutex = RLock()
        # Taken before the mutex.
        self._restoring = Lock()
        self._connection: HolderConnection | None = None
        self._instance: int | None = None
        self._deposits: dict[str, _Deposit] = {}
        # The number of times that the deposits had to be compared anew.
        self._losses = 0

    @property
    def behind(self) -> int:
        """The number of descriptors that the holder should have, and has not acknowledged."""
        # Metrics read it, and do not wait for a holder that another thread asks.
        return sum(not each.acknowledged for each in list(self._deposits.values()))

    @property
    def pays(self) -> bool:
        """Returns True: the holder touches all memory first."""
        return True

    def own(self, instance: int, *, wait_seconds: float = 0.0) -> Former:
        """Becomes the owner; see :class:`DescriptorCarrier`."""
        with self._mutex:
            try:
                former = self._connected().own(instance, wait_seconds)
            except CarrierLost as lost:
                silent = isinstance(lost.__cause__, TimeoutError)
                self._lose(lost)
                if wait_seconds > 0 and silent:
                    raise CarrierOwned(f"no ownership within {wait_seconds:g} seconds") from lost
                # What this process deposits is behind, until ``restore`` finds a holder.
                self._instance = instance
                raise
            self._instance = instance
            return former

    def descriptors(self) -> dict[str, CarriedDescriptor]:
        """Returns all descriptors; an owner's are its deposits from now on."""
        found: dict[str, CarriedDescriptor] = {}
        with self._mutex:
            try:
                found.update(self._connected().descriptors())
            except BaseException as error:
                wire.close_all(each.descriptor for each in found.values())
                if isinstance(error, CarrierLost):
                    self._lose(error)
                raise
            if self._instance is not None:
                self._deposits |= {
                    name: _Deposit(each, acknowledged=True) for name, each in found.items()
                }
            return found

    def make(self, name: str, size_bytes: int) -> int:
        """Returns a new memfd of the holder; see :class:`DescriptorCarrier`.

        Deposits of other threads do not wait for it, since it has a connection of its own.
        """
        with self._mutex:
            self._owned()
            instance, losses = self._instance, self._losses
        assert instance is not None  # this process owns
        try:
            made = self._made(instance, name, size_bytes)
        except CarrierLost as lost:
            with self._mutex:
                if self._losses == losses:
                    self._lose(lost)
            raise
        with self._mutex:
            # A holder that was found or started meanwhile lacks it, or has dropped it.
            self._deposits[name] = _Deposit(made, acknowledged=self._losses == losses)
        return made.descriptor

    def _made(self, instance: int, name: str, size_bytes: int) -> CarriedDescriptor:
        connection = HolderConnection(self._folder, answer_seconds=self._answer_seconds)
        with closing(connection):
            try:
                connection.own(instance)
            except CarrierOwned:
                # Before Linux 6.9, a process of another pid namespace can claim only once.
                with self._mutex:
                    return self._owned().make(name, size_bytes)
            return connection.make(name, size_bytes)

    def put(self, descriptors: Mapping[str, int]) -> bool:
        """Deposits descriptors; see :class:`DescriptorCarrier`.

        Raises :class:`CarrierRefused` for a descriptor that is neither sealed memfd nor pidfd.
        """
        named = {name: _identified(name, each) for name, each in descriptors.items()}
        with self._mutex:
            before = {name: self._deposits[name] for name in named if name in self._deposits}
            self._deposits |= {
                name: _Deposit(each, acknowledged=False) for name, each in named.items()
            }
            try:
                return self._flush(named)
            except CarrierRefused:
                # Earlier portions of many were deposited.
                held = [each for each in named if self._deposits[each].acknowledged]
                new = [each for each in held if each not in before]
                if new:
                    self.drop(new)
                for name in named:
                    self._deposits.pop(name, None)
                self._deposits |= before
                raise

    def drop(self, names: Iterable[str]) -> bool:
        """Ends deposits; see :class:`DescriptorCarrier`."""
        with self._mutex:
            dropped = list(names)
            for name in dropped:
                self._deposits.pop(name, None)
            try:
                connection = self._owned()
                for some in _portions(dropped):
                    connection.drop(some)
            except CarrierLost as lost:
                self._lose(lost)
                return False
            return True

    def is_lost(self) -> bool:
        """Returns whether the holder is known to be lost."""
        with self._mutex:
            return self._connection is None or self._connection.has_ended()

    def restore(self) -> bool:
        """Finds or starts a holder and deposits all that it lacks.

        Drops what the holder has of an earlier connection and should not have. Other threads do
        not wait while it looks for a holder: their deposits are behind meanwhile.
        """
        with self._restoring:
            with self._mutex:
                if self._instance is None or not (self.is_lost() or self.behind):
                    return self._instance is not None
                self._lose(None)
                instance = self._instance
            try:
                connection = self._connect()
                try:
                    connection.own(instance)
                except BaseException:
                    connection.close()
                    raise
            except CarrierLost:
                return False
            with self._mutex:
                self._connection = connection
                return self._complete(connection)

    def give_up(self, sequence: int) -> None:
        """Ends this process's ownership; see :class:`DescriptorCarrier`.

        Ownership ends also if it raises, since the holder may have read the message.
        """
        self._leave(lambda connection: connection.give_up(sequence))

    def end(self) -> None:
        """Ends the holder, and with it all deposits. This process owns no more."""
        self._leave(HolderConnection.end)

    def _leave(self, say: Callable[[HolderConnection], None]) -> None:
        with self._restoring, self._mutex:
            try:
                say(self._owned())
            finally:
                self._instance = None
                self._deposits.clear()
                self.close()

    def close(self) -> None:
        """Ends the connection. This process goes on to own until it is dead. Idempotent."""
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> HolderConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> HolderConnection:
        try:
            return HolderConnection(self._folder, answer_seconds=self._answer_seconds)
        except CarrierLost:
            if self._start is None:
                raise
        # If another process starts one at the same time, one of the two holders stays.
        with suppress(CarrierLost):
            self._start()
        return HolderConnection(self._folder, answer_seconds=self._answer_seconds)

    def _owned(self) -> HolderConnection:
        """Returns the connection on which this process owns. Only ``restore`` makes a new one."""
        if self._instance is None:
            raise CarrierRefused("this process does not own: call own first")
        if self._connection is None:
            raise CarrierLost("the holder is lost, and not restored yet")
        return self._connection

    def _lose(self, why: CarrierLost | None) -> None:
        if why is not None and self._connection is not None:
            log.warning("holder_lost", why=str(why), folder=str(self._folder))
        self.close()
        self._losses += 1
        for name, each in self._deposits.items():
            self._deposits[name] = each._replace(acknowledged=False)

    def _flush(self, names: Iterable[str]) -> bool:
        """Deposits named descriptors; returns False if the holder is lost."""
        try:
            connection = self._owned()
            for some in _portions(names):
                entries = [(name, self._deposits[name].carried) for name in some]
                connection.put(entries)
                for name in some:
                    self._deposits[name] = self._deposits[name]._replace(acknowledged=True)
        except CarrierLost as lost:
            self._lose(lost)
            return False
        return True

    def _complete(self, connection: HolderConnection) -> bool:
        """Deposits all that a holder lacks; returns False if it is lost."""
        try:
            there = self._reconcile(connection)
            for name, each in self._deposits.items():
                self._deposits[name] = each._replace(acknowledged=name in there)
            missing = [name for name, each in self._deposits.items() if not each.acknowledged]
            for name in missing:
                # Its owner may have closed the number too early, and another file has it now.
                carried = self._deposits[name].carried
                _require(name, carried.identity, carried.descriptor)
        except CarrierLost as lost:
            self._lose(lost)
            return False
        log.info("holder_restored", descriptors=len(missing))
        return self._flush(missing)

    def _reconcile(self, connection: HolderConnection) -> set[str]:
        """Drops what the holder should not have; returns the names that it has as it should."""
        right, wrong = set(), []
        for name, each in connection.descriptors():
            os.close(each.descriptor)
            deposit = self._deposits.get(name)
            if deposit is not None and deposit.carried.identity == each.identity:
                right.add(name)
            else:
                wrong.append(name)
        for some in _portions(wrong):
            connection.drop(some)
        return right


def _identified(name: str, descriptor: int) -> CarriedDescriptor:
    try:
        wire.name_in(name.encode())
        return CarriedDescriptor(descriptor, DescriptorIdentity.of(descriptor))
    except (wire.Refused, OSError, ValueError) as error:
        raise CarrierRefused(f"{name}: {error}") from error


def _portions(names: Iterable[str]) -> Iterator[list[str]]:
    """Yields names in portions that one message has room for."""
    rest = iter(names)
    while some := list(islice(rest, wire.MOST_DESCRIPTORS)):
        yield some
