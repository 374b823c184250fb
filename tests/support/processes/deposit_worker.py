"""A process that owns a holder's descriptors, as a server will, for tests with WorkerProcess."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from kvstore.holder.holder_client import HolderClient, start_holder
from kvstore.holder.holder_process import (
    HEADER,
    REQUIRED_SEALS,
    VERSION,
    DescriptorIdentity,
    Former,
    Verb,
    pack_entry,
    send,
)
from kvstore.storage.generation_table import opened_again


def sealed_memfd(name: str, content: bytes) -> int:
    """Returns a sealed memfd with the content."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(descriptor, content, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REQUIRED_SEALS)
    return descriptor


class DepositWorker:
    """A client of the holder of a folder; its descriptors hold their own names as bytes."""

    def __init__(self, folder: Path, *, starts: bool) -> None:
        start = (lambda: start_holder(folder)) if starts else None
        self._client = HolderClient(folder, start=start)

    def settle(self) -> None:
        """Does nothing: no command leaves anything behind."""

    def own(self, instance: int, wait_seconds: float = 0.0) -> Former:
        """Becomes the owner."""
        return self._client.own(instance, wait_seconds=wait_seconds)

    def put(self, *names: str) -> bool:
        """Makes a memfd for each name, and deposits them."""
        return self._client.put({each: sealed_memfd(each, each.encode()) for each in names})

    def send_put(self, name: str) -> None:
        """Sends a request to deposit a memfd, and does not wait for its answer."""
        descriptor = sealed_memfd(name, name.encode())
        entry = pack_entry(name, DescriptorIdentity.of(descriptor))
        connection = self._client._connection
        assert connection is not None
        send(connection._socket, HEADER.pack(VERSION, Verb.PUT, 1) + entry, [descriptor])

    def write_generation(self, name: str, slot: int, generation: int) -> None:
        """Writes into a generation table that the holder has, as the store's next process."""
        table = self._client.descriptors()[name]
        descriptor = opened_again(table.descriptor, os.O_RDWR)
        memoryview(mmap.mmap(descriptor, 0)).cast("Q")[slot] = generation

    def put_pidfd(self, name: str, pid: int) -> bool:
        """Deposits a pidfd."""
        return self._client.put({name: os.pidfd_open(pid)})

    def contents(self) -> dict[str, bytes]:
        """Returns what is in each memfd that the holder has."""
        return {
            name: os.pread(each.descriptor, each.identity.size_bytes, 0)
            for name, each in self._client.descriptors().items()
        }

    def make(self, name: str, size_bytes: int) -> int:
        """Asks for a memfd; returns its allocated bytes."""
        return os.fstat(self._client.make(name, size_bytes)).st_blocks * 512

    def drop(self, *names: str) -> bool:
        """Ends deposits."""
        return self._client.drop(names)

    def give_up(self, sequence: int) -> None:
        """Yields."""
        self._client.give_up(sequence)

    def end(self) -> None:
        """Ends the holder."""
        self._client.end()

    def restore(self) -> bool:
        """Deposits anew."""
        return self._client.restore()

    def state(self) -> tuple[bool, int]:
        """Returns whether the holder is lost, and the number of deposits that are behind."""
        return self._client.is_lost(), self._client.behind


@contextmanager
def deposit_worker(_: Connection, folder: Path, starts: bool = False) -> Iterator[DepositWorker]:  # noqa: FBT001, FBT002  # positional over the pipe
    """Makes the worker in its process."""
    yield DepositWorker(folder, starts=starts)
