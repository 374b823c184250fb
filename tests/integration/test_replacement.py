"""A server that takes the place of another one, which serves until then; all are processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest

from kvstore.instance_lock import ReplacementLock
from kvstore.runtime_dir import RuntimeDir
from kvstore_client import Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    hits,
    holds_tokens,
    memfd_mappings,
    open_client,
    page_bytes,
    prompt,
    write_and_insert,
)
from processes.holder_folder import HolderFolder

PAGES = 4
# Ends itself once the other server has got its signal, which it reads only then.
DIES_THEN = """
import os, signal, sys
from kvstore import server
from kvstore.assembly import replacement
send = signal.pidfd_send_signal
def send_and_die(pidfd, number):
    send(pidfd, signal.SIGSTOP)
    send(pidfd, number)
    os.kill(os.getpid(), signal.SIGKILL)
replacement.signal.pidfd_send_signal = send_and_die
sys.exit(server.run())
"""
# Ends itself once the other server has left its memory.
DIES_AFTERWARDS = """
import os, signal, sys
from kvstore import server
from kvstore.succession.store_succession import Succession
own = Succession.own
def own_and_die(*arguments, **named):
    own(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
Succession.own = own_and_die
sys.exit(server.run())
"""
# Reads the memory ahead while the other server is stopped, and compares the memory.
READS_AHEAD = """
import hashlib, os, signal, sys
from kvstore import server
from kvstore.assembly import replacement
from kvstore.succession.store_succession import Succession
prepare = Succession.prepare
def digest(carrier):
    carried = carrier.descriptors()
    found = {}
    for name, each in carried.items():
        if each.identity.size_bytes:
            data = os.pread(each.descriptor, each.identity.size_bytes, 0)
            found[name] = hashlib.sha256(data).digest()
    return found
def compare(self, *arguments, **named):
    replacement.signal.pidfd_send_signal(PIDFD[0], signal.SIGSTOP)
    before = digest(self._carrier)
    assert len(before) > 3
    prepare(self, *arguments, **named)
    assert self._ahead.head_start.page_count == 4
    unchanged = digest(self._carrier) == before
    replacement.signal.pidfd_send_signal(PIDFD[0], signal.SIGCONT)
    os._exit(0 if unchanged else 3)
PIDFD = []
pidfd_of = replacement._pidfd_of
def noted(*arguments):
    PIDFD.append(pidfd_of(*arguments))
    return PIDFD[0]
replacement._pidfd_of = noted
Succession.prepare = compare
sys.exit(server.run())
"""
# Stops the other server just before the signal.
STOPS_IT_FIRST = """
import os, signal, sys
from functools import partial
from kvstore import server
from kvstore.assembly import replacement
send = signal.pidfd_send_signal
def stop_and_send(pidfd, number):
    send(pidfd, signal.SIGSTOP)
    send(pidfd, number)
replacement.signal.pidfd_send_signal = stop_and_send
server.replace_server = partial(replacement.replace_server, yield_seconds=0.1)
sys.exit(server.run())
"""

# Waits less for the memory.
WAITS_LESS = """
import sys
from functools import partial
from kvstore import server
from kvstore.assembly import replacement
server.replace_server = partial(replacement.replace_server, yield_seconds=0.1)
sys.exit(server.run())
"""
# Stops once it leaves its memory, just before the holder hears of it.
STOPS_AS_IT_LEAVES = """
import os, signal, sys
from kvstore import server
from kvstore.succession.store_succession import Succession
leave = Succession.leave
def stop_and_leave(self):
    os.kill(os.getpid(), signal.SIGSTOP)
    leave(self)
Succession.leave = stop_and_leave
sys.exit(server.run())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


@pytest.fixture
def flags(holder: HolderFolder) -> tuple[str, ...]:
    """Provides the settings of a store of 32 pages whose memory the holder keeps."""
    return (*SMALL_STORE, "--holder", str(holder.path), "--no-holder-start")


@pytest.fixture
def store(flags: tuple[str, ...]) -> Iterator[RunningStore]:
    """Provides a store with a holder."""
    with running_store(*flags) as running:
        yield running


def ended(
    store: RunningStore, *arguments: str, program: tuple[str, ...] = ("-m", "kvstore")
) -> tuple[int, str]:
    """Returns the status and the stderr of a server that is started beside a store, and ends."""
    command = [sys.executable, *program, "--runtime-dir", str(store.runtime_dir), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


class Load:
    """A thread that matches all the time, as a context manager; it raises what a match raised."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ending = Event()
        self._error: BaseException | None = None
        self.match_count = 0
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                with self._namespace.match(TOKENS) as match:
                    assert holds_tokens(self._namespace, TOKENS, match.pages)
                self.match_count += 1
        except BaseException as error:
            self._error = error
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        assert self._error is None


def test_a_client_under_load_notices_nothing_but_misses(store: RunningStore) -> None:
    """Its pins, its reservation, its mappings and its epoch stay, however often it happens."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        epoch = client.store_epoch
        write_and_insert(namespace, TOKENS)
        mappings = memfd_mappings()
        with (
            namespace.match(TOKENS) as match,
            namespace.acquire(prompt(2), total_page_count=PAGES) as acquired,
        ):
            reservation = acquired.reservation
            assert reservation is not None
            with Load(namespace) as load:
                for _ in range(3):
                    store.replace()
                    before = load.match_count
                    assert wait_until(lambda: hits(namespace))
                    assert wait_until(lambda before=before: load.match_count > before)
            assert holds_tokens(namespace, TOKENS, match.pages)
            for number, page in enumerate(reservation.pages):
                namespace.page(page)[:] = page_bytes(prompt(2), number)
            reservation.insert(prompt(2)[:-1], position=0, base=acquired.match)
        assert memfd_mappings() == mappings
        assert client.store_epoch == epoch
    assert store.log.count("replacement_begins") == 3
    assert store.log.count("head_start=completed") >= 1
    assert store.log.count("clean_start") == 1
    assert "instance=4" in store.log


def test_where_no_server_runs_it_starts_as_usual(flags: tuple[str, ...]) -> None:
    """A supervisor can always start it in this way."""
    with running_store(*flags, "--replace") as store:
        assert "nothing_to_replace" in store.log
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            store.restart()
            assert wait_until(lambda: hits(namespace))


def test_a_server_without_a_holder_is_not_told_to_end(flags: tuple[str, ...]) -> None:
    """Its pages would be lost: it serves on."""
    with running_store(*SMALL_STORE) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            status, error = ended(store, *flags, "--replace")
            assert status == 1
            assert f"pid {store.pid}) leaves no memory" in error
            assert hits(namespace)
        assert "memory_left_to_the_next" not in store.log


def test_a_server_with_another_holder_is_not_told_to_end(
    store: RunningStore, tmp_path: Path
) -> None:
    """Nothing of its memory would come."""
    with HolderFolder(tmp_path / "other") as other:
        settings = (*SMALL_STORE, "--holder", str(other.path), "--replace")
        status, error = ended(store, *settings)
    assert status == 1
    assert "keeps its memory at another --holder" in error
    assert "memory_left_to_the_next" not in store.log


def test_a_stopped_server_is_not_told_to_end(store: RunningStore, flags: tuple[str, ...]) -> None:
    """It goes on once it continues, and can be replaced then."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        store.suspend()
        status, error = ended(store, *flags, "--replace")
        assert status == 1
        assert "does not answer" in error
        store.resume()
        assert wait_until(lambda: hits(namespace))
        assert "memory_left_to_the_next" not in store.log
        store.replace()
        assert wait_until(lambda: hits(namespace))


def test_a_server_that_stops_before_the_signal_serves_on_once_it_continues(
    store: RunningStore, flags: tuple[str, ...]
) -> None:
    """The other one says so and ends, so nobody waits for the memory any more."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        status, error = ended(store, *flags, "--replace", program=("-c", STOPS_IT_FIRST))
        assert status == 1
        assert "was asked for its memory" in error
        store.resume()
        assert wait_until(lambda: "replacement_refused" in store.log)
        assert wait_until(lambda: hits(namespace))
        store.replace()
        assert wait_until(lambda: hits(namespace))
    assert store.log.count("clean_start") == 1


def test_a_server_that_stops_as_it_leaves_keeps_its_memory_until_it_ends(
    flags: tuple[str, ...],
) -> None:
    """The other one says so and ends; the next start goes on with the memory."""
    with running_store(*flags, program=("-c", STOPS_AS_IT_LEAVES)) as store:
        client, namespace = open_client(store.runtime_dir)
        with closing(client):
            write_and_insert(namespace, TOKENS)
            status, error = ended(store, *flags, "--replace", program=("-c", WAITS_LESS))
            assert status == 1
            assert "was asked for its memory" in error
            assert "memory_left_to_the_next" in store.log
            store.resume()
            assert store._started().wait(LIMIT) == 0
            store._program = ["-m", "kvstore"]
            store.start()
            assert wait_until(lambda: hits(namespace))
        assert store.log.count("clean_start") == 1


def test_of_two_new_servers_one_waits_for_another_time(
    store: RunningStore, flags: tuple[str, ...]
) -> None:
    """The second one ends, and neither the running server nor the first one notices it."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        with ReplacementLock(RuntimeDir(store.runtime_dir)):
            status, error = ended(store, *flags, "--replace")
        assert status == 1
        assert "another kvstore-server is about to replace" in error
        assert hits(namespace)
        store.replace()
        assert wait_until(lambda: hits(namespace))
    assert "replacement_refused" not in store.log


def test_if_the_new_server_dies_the_other_one_serves_on(
    store: RunningStore, flags: tuple[str, ...]
) -> None:
    """It hands nothing over to nobody."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        status, _ = ended(store, *flags, "--replace", program=("-c", DIES_THEN))
        assert status == -9
        store.resume()
        assert wait_until(lambda: "replacement_refused" in store.log)
        assert wait_until(lambda: hits(namespace))
        store.replace()
        assert wait_until(lambda: hits(namespace))
    assert store.log.count("clean_start") == 1


def test_if_the_new_server_dies_with_the_memory_the_next_start_goes_on(
    store: RunningStore, flags: tuple[str, ...]
) -> None:
    """The memory waits at the holder."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        status, _ = ended(store, *flags, "--replace", program=("-c", DIES_AFTERWARDS))
        assert status == -9
        assert store._started().wait(LIMIT) == 0
        store.start()
        assert wait_until(lambda: hits(namespace))
    assert store.log.count("clean_start") == 1


def test_a_signal_of_nobody_who_waits_changes_nothing(store: RunningStore) -> None:
    """An operator's mistake ends no server."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        os.kill(store.pid, signal.SIGUSR1)
        assert wait_until(lambda: "replacement_refused" in store.log)
        assert hits(namespace)


@pytest.mark.parametrize("more", [(), ("--debug-poison-freed-slots",)])
def test_a_server_with_other_settings_does_not_take_the_place(
    store: RunningStore, flags: tuple[str, ...], more: tuple[str, ...]
) -> None:
    """It would discard the memory, so it says why and ends before the signal.

    So does one that poisons freed slots, which builds no trees ahead.
    """
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        status, error = ended(store, *flags, *more, "--prefix-cache-backend", "hash", "--replace")
        assert status == 1
        assert "these settings changed: prefix_cache_backend" in error
        assert hits(namespace)


def test_nothing_of_the_memory_is_written_before_it_is_owned(
    store: RunningStore, flags: tuple[str, ...]
) -> None:
    """A server that reads ahead leaves each byte of journal and tables as it was."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        status, error = ended(store, *flags, "--replace", program=("-c", READS_AHEAD))
        assert status == 0, error
        assert hits(namespace)
