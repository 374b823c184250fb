"""The store of descriptors that systemd has for each service (FDSTORE, man 5 systemd.service)."""

import fcntl
import os
import select
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from threading import Lock

import structlog

from kvstore.holder.carrier import CarriedDescriptor, CarrierFull, CarrierLost, CarrierRefused
from kvstore.holder.holder_process import (
    REQUIRED_SEALS,
    DescriptorIdentity,
    Former,
    Refused,
    close_all,
    lowest_bound,
    name_in,
    new_memfd,
)
from kvstore.service_manager import ServiceManager

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# SD_LISTEN_FDS_START: the number of the first descriptor that systemd passes.
FIRST_DESCRIPTOR = 3
BARRIER_SECONDS = 10.0


class SystemdStore:
    """systemd as the carrier of descriptors. Thread-safe.

    systemd keeps them while it restarts the service, and closes them when it stops the service.
    The unit needs ``FileDescriptorStoreMax=``; systemd closes what exceeds it, and says so in its
    log alone. Since version 254 the number is in ``$FDSTORE``, and this class refuses more.

    systemd runs one main process at a time and kills it before the next, so nobody else owns. It
    counts as lost while it reads no message; ``restore`` repeats the messages sent meanwhile.
    """

    def __init__(
        self,
        manager: ServiceManager,
        environment: MutableMapping[str, str] = os.environ,
        *,
        first_descriptor: int = FIRST_DESCRIPTOR,
        root: Path = Path("/"),
    ) -> None:
        """Takes the descriptors out of the environment, so that no child takes them as well.

        Bounds of memory are read below ``root``.

        Raises :class:`CarrierRefused` if one of them is neither a sealed memfd nor a pidfd, or if
        two have one name.
        """
        self._manager = manager
        self._mutex = Lock()
        self._most = int(environment.get("FDSTORE", "0")) or None
        self._held = _received(environment, first_descriptor)
        self._root = root
        self._deposits = {name: each.identity for name, each in self._held.items()}
        # What systemd did not acknowledge: descriptors to store, and names to remove.
        self._behind: dict[str, int] = {}
        self._dropped: set[str] = set()

    @property
    def behind(self) -> int:
        """The number of descriptors that systemd has not acknowledged."""
        return len(self._behind)

    @property
    def pays(self) -> bool:
        """Returns False: this process makes the memory."""
        return False

    def own(self, instance: int, *, wait_seconds: float = 0.0) -> Former:  # noqa: ARG002  # as others
        """Waits until systemd reads a message. The former instance's number is not known."""
        with self._mutex:
            self._wait()
        return Former(0, None)

    def descriptors(self) -> dict[str, CarriedDescriptor]:
        """Returns copies of the descriptors that this process was started with."""
        return {
            name: each._replace(descriptor=os.dup(each.descriptor))
            for name, each in self._held.items()
        }

    def make(self, name: str, size_bytes: int) -> int:
        """Makes a memfd in this process, to which its pages are charged, and deposits it."""
        bound = lowest_bound(self._root)
        if size_bytes > bound.available_bytes:
            raise CarrierFull(
                f"{name} needs {size_bytes} bytes, and {bound.source} has {bound.available_bytes}"
            )
        try:
            descriptor = new_memfd(name, size_bytes, REQUIRED_SEALS)
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
                self.put({name: descriptor})
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise CarrierFull(f"{name}: {error.strerror}") from error
        return descriptor

    def put(self, descriptors: Mapping[str, int]) -> bool:
        """Deposits descriptors, one message each; see :class:`DescriptorCarrier`."""
        named = {name: _identity(name, each) for name, each in descriptors.items()}
        with self._mutex:
            again = named.keys() & self._deposits.keys()
            if any(named[name] != self._deposits[name] for name in again):
                raise CarrierRefused(f"{sorted(again)} are held already, with another identity")
            count = len(self._deposits.keys() | named.keys())
            if self._most is not None and count > self._most:
                raise CarrierFull(
                    f"{count} descriptors are more than systemd keeps ({self._most}): raise "
                    "FileDescriptorStoreMax= of the unit"
                )
            lost = self.is_lost()
            self._deposits |= named
            self._behind |= descriptors
            self._dropped |= again
            return not lost and self._catch_up()

    def drop(self, names: Iterable[str]) -> bool:
        """Ends deposits; see :class:`DescriptorCarrier`."""
        with self._mutex:
            lost = self.is_lost()
            for name in names:
                received = self._held.pop(name, None)
                if received is not None:
                    os.close(received.descriptor)
                self._deposits.pop(name, None)
                self._behind.pop(name, None)
                self._dropped.add(name)
            return not lost and self._catch_up()

    def is_lost(self) -> bool:
        """Returns whether systemd did not acknowledge all messages."""
        return bool(self._behind or self._dropped)

    def restore(self) -> bool:
        """Repeats what systemd did not acknowledge."""
        with self._mutex:
            return self._catch_up()

    def _catch_up(self) -> bool:
        """Sends what systemd lacks, and waits until it has read it. Returns False if it is lost."""
        try:
            for name in self._dropped:
                self._tell(f"FDSTOREREMOVE=1\nFDNAME={name}")
            for name, descriptor in self._behind.items():
                # Without FDPOLL=0 systemd drops the pidfd of a process that was reaped.
                self._tell(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [descriptor])
            if self._dropped or self._behind:
                self._wait()
        except CarrierLost as lost:
            # Each message may have been read, so all are repeated: removals before deposits.
            self._dropped |= self._behind.keys()
            log.warning("holder_lost", why=str(lost))
            return False
        self._dropped.clear()
        self._behind.clear()
        return True

    def give_up(self, sequence: int) -> None:
        """Does nothing: the next process owns once this one is dead, and gets no number."""

    def end(self) -> None:
        """Ends all deposits."""
        if not self.drop(list(self._deposits)):
            raise CarrierLost("systemd did not read that all deposits end")

    def close(self) -> None:
        """Closes this process's copies of what it was started with. Idempotent."""
        held, self._held = self._held, {}
        close_all(each.descriptor for each in held.values())

    def _tell(self, message: str, descriptors: Iterable[int] = ()) -> None:
        try:
            self._manager.send(message, descriptors)
        except OSError as error:
            raise CarrierLost(f"systemd takes no message: {error}") from error

    def _wait(self) -> None:
        """Waits until systemd has read all messages so far, which it says by closing a pipe."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._tell("BARRIER=1", [writes])
            finally:
                os.close(writes)
            waiting = select.poll()
            waiting.register(reads, 0)
            if not waiting.poll(BARRIER_SECONDS * 1000):
                raise CarrierLost(f"systemd read no message in {BARRIER_SECONDS:g} seconds")
        finally:
            os.close(reads)


def _received(environment: MutableMapping[str, str], first: int) -> dict[str, CarriedDescriptor]:
    """Returns the descriptors that systemd started this process with, close-on-exec."""
    pid = environment.pop("LISTEN_PID", "")
    count = int(environment.pop("LISTEN_FDS", "0"))
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or count == 0:
        return {}
    if len(names) != count or len(set(names)) != count:
        raise CarrierRefused(f"systemd passed {count} descriptors with the names {names}")
    found = {}
    for descriptor, name in enumerate(names, first):
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        found[name] = CarriedDescriptor(descriptor, _identity(name, descriptor))
    return found


def _identity(name: str, descriptor: int) -> DescriptorIdentity:
    try:
        name_in(name.encode())
        return DescriptorIdentity.of(descriptor)
    except (Refused, OSError, ValueError) as error:
        raise CarrierRefused(f"{name}: {error}") from error
