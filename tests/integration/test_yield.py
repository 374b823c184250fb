"""A server that leaves its memory to the next: after YIELD nothing of it writes there."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.holder.holder_client import HolderConnection
from kvstore.holder.holder_process import DescriptorKind
from kvstore_client import ClientConfig, Namespace
from kvstore_client.errors import StoreError
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import LIMIT, SMALL_STORE, open_client, prompt, write_and_insert
from processes.holder_folder import HolderFolder
from processes.yielding_server import FAULT, PROGRAM, SOCKET, THREADS

# Seconds. A lease ends within the first, and the reaper of a server that goes on writes that.
TTL, QUIET = 0.5, 3.0


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """Provides the socket on which a server says that it yields."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(tmp_path / "yield"))
        made.listen()
        made.settimeout(LIMIT)
        yield made


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


class Load:
    """Requests of a client on a thread, until the block ends."""

    def __init__(self, namespace: Namespace) -> None:
        self.inserted = 0
        self._namespace = namespace
        self._over = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count(1):
            if self._over.is_set():
                return
            try:
                write_and_insert(self._namespace, prompt(number))
                self.inserted += 1
            except (StoreError, AssertionError):
                self._over.wait(0.01)


def bytes_in(holder: HolderFolder) -> dict[str, int]:
    """Returns a digest of each memory that a holder has."""
    found = {}
    with closing(HolderConnection(holder.path)) as connection:
        for name, each in connection.descriptors():
            if each.identity.kind == DescriptorKind.MEMFD:
                size = each.identity.size_bytes
                found[name] = xxh3_64_intdigest(os.pread(each.descriptor, size, 0))
            os.close(each.descriptor)
    return found


@pytest.mark.parametrize("fault", ["", THREADS], ids=["none", "threads-go-on"])
def test_nothing_writes_after_yield(
    holder: HolderFolder,
    listener: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """Journal, tables and pages stay as they were just before, while the process is alive.

    If its threads went on, they would write that a lease ended.
    """
    monkeypatch.setenv(SOCKET, listener.getsockname())
    monkeypatch.setenv(FAULT, fault)
    runtime_dir = tmp_path / "run"
    runtime_dir.mkdir(mode=0o700)
    settings = ("--holder", str(holder.path), "--no-holder-start", "--min-ttl", "0.2")
    store = RunningStore(runtime_dir, (*SMALL_STORE, *settings), program=PROGRAM)
    store.start()
    try:
        client, namespace = open_client(runtime_dir, ClientConfig(call_timeout=LIMIT, ttl=TTL))
        with closing(client):
            with Load(namespace) as load:
                assert wait_until(lambda: load.inserted > 20)
                os.kill(store.pid, signal.SIGTERM)
                server, _ = listener.accept()
                server.settimeout(LIMIT)
                assert server.recv(64) == b"yields"
            with server:
                before = bytes_in(holder)
                assert len(before) > 4
                server.sendall(b".")
                assert server.recv(64) == b"yielded"
                is_changed = wait_until(
                    lambda: bytes_in(holder) != before, LIMIT if fault else QUIET
                )
                assert is_changed == bool(fault)
                assert not store._started().poll()
                server.sendall(b".")
    finally:
        store.kill()
