"""The two carriers of descriptors, for tests of what they have in common."""

import os
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Protocol, Self

from kvstore.holder.carrier import DescriptorCarrier
from kvstore.holder.holder_client import HolderClient, HolderConnection
from kvstore.holder.holder_process import RESERVE, close_all
from kvstore.holder.systemd_store import SystemdStore
from kvstore.service_manager import ServiceManager
from processes.holder_folder import HolderFolder
from processes.notify_stand_in import NotifyStandIn

# Descriptors have these numbers as a process inherits them, far from those of tests.
FIRST_DESCRIPTOR = 700


def first_carrier(kind: str, path: Path) -> DescriptorCarrier:
    """Returns the carrier of a store's first process, which owns."""
    carrier: DescriptorCarrier = (
        SystemdStore(ServiceManager(str(path)), {"FDSTORE": "1024"})
        if kind == "systemd"
        else HolderClient(path)
    )
    carrier.own(1)
    return carrier


def inodes_in(folder: Path) -> dict[str, int]:
    """Returns the inode of each descriptor that the holder of a folder has, by name."""
    with closing(HolderConnection(folder)) as connection:
        found = dict(connection.descriptors())
    close_all(each.descriptor for each in found.values())
    return {name: each.identity.inode for name, each in found.items()}


class CarrierRig(Protocol):
    """A carrier with a place for ``most`` descriptors; ends as a context manager.

    Other processes make their own with ``first_carrier`` of ``kind`` and ``path``.
    """

    kind: str
    path: Path

    def carrier(self) -> DescriptorCarrier:
        """Returns the carrier of this process, as the store's next one, which owns."""
        ...

    def inodes(self) -> dict[str, int]:
        """Returns the inode of each descriptor that it has, by name."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class HolderRig:
    """A holder's process."""

    kind = "holder"

    def __init__(self, folder: Path, most: int = 1024) -> None:
        self.path = folder / "holder"
        self._most = most
        self._holder = HolderFolder(self.path, "--descriptors", str(most))
        self._instances = count(1)
        self._stack = ExitStack()

    def carrier(self) -> HolderClient:
        """Returns the carrier of this process, which owns."""
        client = self._stack.enter_context(closing(HolderClient(self.path)))
        client.own(next(self._instances))
        return client

    def inodes(self) -> dict[str, int]:
        """Returns the inode of each descriptor that the holder has, by name."""
        return inodes_in(self.path)

    def __enter__(self) -> Self:
        self._stack.callback(self._holder.__exit__)
        self._holder.start(f"ulimit -n {self._most + RESERVE};")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class SystemdRig:
    """A stand-in for systemd."""

    kind = "systemd"

    def __init__(self, folder: Path, most: int = 1024) -> None:
        self.path = folder / "notify"
        self._manager = NotifyStandIn(self.path, most)
        self._stack = ExitStack()

    def carrier(self) -> SystemdStore:
        """Returns the carrier of this process, as if systemd had started it now."""
        # A barrier: all that a dead process sent is read first.
        SystemdStore(ServiceManager(str(self.path)), {}).own(0)
        names = [name for name, _, _ in self._manager.stored]
        for number, (_, each, _) in enumerate(self._manager.stored, FIRST_DESCRIPTOR):
            os.dup2(each, number)
        passed = {
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": str(len(names)),
            "LISTEN_FDNAMES": ":".join(names),
        }
        store = SystemdStore(
            ServiceManager(str(self.path)),
            self._manager.environment() | passed,
            first_descriptor=FIRST_DESCRIPTOR,
        )
        return self._stack.enter_context(closing(store))

    def inodes(self) -> dict[str, int]:
        """Returns the inode of each descriptor that is stored, by name."""
        return {name: os.fstat(each).st_ino for name, each, _ in self._manager.stored}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._manager)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
