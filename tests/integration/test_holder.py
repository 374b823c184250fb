"""A holder's process, and processes that own its descriptors one after the other."""

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from kvstore.holder import holder_process as wire
from kvstore.holder.carrier import (
    CarriedDescriptor,
    CarrierFull,
    CarrierLost,
    CarrierOwned,
    CarrierRefused,
)
from kvstore.holder.holder_client import HolderClient, HolderConnection, start_holder
from kvstore.holder.holder_process import DescriptorIdentity, DescriptorKind, Former, Result, Verb
from kvstore.storage.generation_table import GenerationTable
from kvstore_client.testing import wait_until
from processes import other_user
from processes.deposit_worker import deposit_worker, sealed_memfd
from processes.holder_folder import LIMIT, HolderFolder
from processes.worker_process import WorkerProcess

NAMES = [f"extent-{number}.data" for number in range(300)]
STRANGER = 54321
# A holder that waits in its main thread, while another thread is the one that gets SIGTERM. So its
# wait is not interrupted, as when the signal comes right before the wait.
UNINTERRUPTED = """
import signal, sys, threading
from kvstore.holder import holder_process
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.exit(holder_process.main(sys.argv[1:]))
"""
# The worker starts a holder if none is there.
STARTS = True


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


@pytest.fixture
def owners(holder: HolderFolder) -> Iterator[list[WorkerProcess]]:
    """Provides three processes that may own; none of them does yet."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(WorkerProcess(f"server {each}", deposit_worker, holder.path))
            for each in range(3)
        ]


@pytest.fixture
def owner(holder: HolderFolder) -> Iterator[WorkerProcess]:
    """Provides one process that may own."""
    with WorkerProcess("server", deposit_worker, holder.path) as started:
        yield started


@pytest.fixture
def connection(holder: HolderFolder) -> Iterator[HolderConnection]:
    """Provides a connection of this process, which does not own yet."""
    with closing(HolderConnection(holder.path)) as made:
        yield made


def names_held(holder: HolderFolder) -> set[str]:
    """Returns the names that the holder has."""
    found = set()
    with closing(HolderConnection(holder.path)) as connection:
        for name, each in connection.descriptors():
            found.add(name)
            os.close(each.descriptor)
    return found


def carried(descriptor: int) -> CarriedDescriptor:
    """Returns a descriptor with its identity."""
    return CarriedDescriptor(descriptor, DescriptorIdentity.of(descriptor))


def exchange(folder: Path, message: bytes, descriptors: tuple[int, ...] = ()) -> tuple[int, bytes]:
    """Sends one message of any bytes, and returns the answer's result and body."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.settimeout(LIMIT)
        raw.connect(str(folder / wire.SOCKET_NAME))
        wire.send(raw, message, descriptors)
        answer, _ = wire.receive(raw)
    return answer[1], answer[wire.HEADER.size :]


def test_the_next_owner_gets_what_a_killed_one_deposited(owners: list[WorkerProcess]) -> None:
    """Three hundred descriptors come back by their names, with the bytes of their memory."""
    first, second, _ = owners
    assert first.ask("own", 1) == Former(0, None)
    assert first.ask("put", *NAMES)
    first.kill()
    assert second.ask("own", 2) == Former(1, None)
    assert second.ask("contents") == {name: name.encode() for name in NAMES}


def test_a_stopped_owner_owns(owners: list[WorkerProcess]) -> None:
    """It may continue and write, so nobody else owns; and it still does when it continues."""
    first, second, _ = owners
    first.ask("own", 1)
    first.signal(signal.SIGSTOP)
    with pytest.raises(CarrierOwned, match=f"pid {first.pid} owns"):
        second.ask("own", 2)
    first.signal(signal.SIGCONT)
    assert first.ask("put", "a")


def test_an_owner_that_hung_up_owns(owner: WorkerProcess, connection: HolderConnection) -> None:
    """The end of a connection proves nothing. The same process owns again by another."""
    connection.own(1)
    connection.close()
    with pytest.raises(CarrierOwned):
        owner.ask("own", 2)


def test_an_owner_connects_again(holder: HolderFolder, connection: HolderConnection) -> None:
    """The former owner is still the one before it, and both connections have its rights."""
    assert connection.own(1) == Former(0, None)
    with closing(HolderConnection(holder.path)) as another:
        assert another.own(1) == Former(0, None)
        another.drop(["a"])
        connection.drop(["a"])


def test_an_owner_that_yields_has_no_rights(
    owner: WorkerProcess, connection: HolderConnection
) -> None:
    """The next owner learns its number, and every further verb of it is refused."""
    connection.own(1)
    connection.give_up(42)
    assert owner.ask("own", 2) == Former(1, 42)
    for verb in (
        lambda: connection.drop(["a"]),
        lambda: connection.make("b", 4096),
        lambda: connection.put([]),
        lambda: connection.give_up(43),
        connection.end,
    ):
        with pytest.raises(CarrierOwned, match="does not own"):
            verb()
    assert list(connection.descriptors()) == []


def test_of_two_candidates_the_first_wins(owners: list[WorkerProcess]) -> None:
    """The other one is refused, as long as the first lives."""
    first, second, third = owners
    first.ask("own", 1)
    first.kill()
    second.ask("own", 2)
    with pytest.raises(CarrierOwned):
        third.ask("own", 3)


@pytest.mark.parametrize("ending", ["kill", "give_up"])
def test_candidates_wait_for_the_end_of_the_owner(owners: list[WorkerProcess], ending: str) -> None:
    """One of two that wait owns at once, and the other one after it."""
    first, *others = owners
    first.ask("own", 1)
    for instance, each in enumerate(others, 2):
        each.tell("own", instance, LIMIT)
    if ending == "kill":
        first.kill()
    else:
        first.ask("give_up", 9)
    pipes = {each._pipe.fileno(): each for each in others}
    (ready,) = select.select(list(pipes), [], [], LIMIT)[0]
    winner = pipes.pop(ready)
    (loser,) = pipes.values()
    assert winner.answer() == Former(1, 9 if ending == "give_up" else None)
    winner.kill()
    assert loser.answer().yielded is None


def test_a_wait_for_the_owner_ends(holder: HolderFolder, owner: WorkerProcess) -> None:
    """A candidate gives up, and may ask again."""
    owner.ask("own", 1)
    with closing(HolderClient(holder.path, answer_seconds=0.1)) as client:
        with pytest.raises(CarrierOwned, match="no ownership within"):
            client.own(2, wait_seconds=0.01)
        owner.kill()
        assert client.own(2, wait_seconds=LIMIT) == Former(1, None)


def test_what_the_owner_said_last_is_done(
    holder: HolderFolder, owners: list[WorkerProcess]
) -> None:
    """A deposit that a killed owner sent comes before the next owner, even if it was not read."""
    first, second, _ = owners
    first.ask("own", 1)
    os.kill(holder.pid, signal.SIGSTOP)
    first.ask("send_put", "last")
    first.kill()
    second.tell("own", 2)
    os.kill(holder.pid, signal.SIGCONT)
    second.answer()
    assert second.ask("contents") == {"last": b"last"}


def test_all_that_a_dead_owner_sent_is_done(
    holder: HolderFolder, owners: list[WorkerProcess]
) -> None:
    """Also several requests whose answers nobody reads."""
    first, second, _ = owners
    first.ask("own", 1)
    first.ask("send_put", "read")
    assert wait_until(lambda: names_held(holder) == {"read"})
    os.kill(holder.pid, signal.SIGSTOP)
    for name in ("a", "b", "c"):
        first.ask("send_put", name)
    first.kill()
    os.kill(holder.pid, signal.SIGCONT)
    second.ask("own", 2)
    assert second.ask("contents").keys() == {"read", "a", "b", "c"}


def test_a_holder_that_dies_loses_nothing(tmp_path: Path) -> None:
    """The owner notices it, goes on, starts another and deposits everything anew."""
    folder = HolderFolder(tmp_path / "holder")
    with WorkerProcess("server", deposit_worker, folder.path, STARTS) as owner:
        owner.ask("own", 1)
        owner.ask("put", *NAMES)
        assert owner.ask("state") == (False, 0)
        earlier = folder.pid
        os.kill(earlier, signal.SIGKILL)
        assert not owner.ask("put", "later")
        assert owner.ask("state") == (True, len(NAMES) + 1)
        assert owner.ask("drop", NAMES[0]) is False
        with pytest.raises(CarrierLost):
            owner.ask("make", "made", 4096)
        assert owner.ask("restore")
        assert owner.ask("state") == (False, 0)
        assert folder.pid != earlier
        assert names_held(folder) == {*NAMES[1:], "later"}
        assert owner.ask("put", "last")
        owner.ask("end")


def test_an_owner_without_a_holder_is_told(tmp_path: Path) -> None:
    """Nobody starts one, so nothing is deposited, and nothing hangs."""
    client = HolderClient(tmp_path / "nobody")
    with pytest.raises(CarrierLost, match="no holder serves"):
        client.own(1)
    assert client.is_lost()
    assert not client.restore()


def test_a_holder_that_lives_is_reconciled(holder: HolderFolder) -> None:
    """A client that lost its connection drops what it should not have, and adds what is missing."""
    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        client.put({name: sealed_memfd(name, b"1") for name in ("kept", "dropped")})
        client.close()
        assert not client.drop(["dropped"])
        assert not client.put({"added": sealed_memfd("added", b"1")})
        assert client.behind == 2
        assert client.restore()
        assert names_held(holder) == {"kept", "added"}


def test_a_stopped_holder_keeps_nobody_waiting(holder: HolderFolder) -> None:
    """The first call ends after its time, later ones at once, and all is made up for afterwards."""
    with closing(HolderClient(holder.path, answer_seconds=0.2)) as client:
        client.own(1)
        os.kill(holder.pid, signal.SIGSTOP)
        assert not client.put({"a": sealed_memfd("a", b"1")})
        with ThreadPoolExecutor(1) as threads:
            restored = threads.submit(client.restore)
            assert not client.put({"b": sealed_memfd("b", b"1")})
            assert not restored.result(LIMIT)
        os.kill(holder.pid, signal.SIGCONT)
        assert wait_until(client.restore)
        assert names_held(holder) == {"a", "b"}


def test_a_process_yields_for_good(holder: HolderFolder) -> None:
    """A holder that did not answer may have heard it, so the process takes nothing back."""
    with closing(HolderClient(holder.path, answer_seconds=0.2)) as client:
        client.own(1)
        client.put({"a": sealed_memfd("a", b"1")})
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(CarrierLost):
            client.give_up(5)
        os.kill(holder.pid, signal.SIGCONT)
        assert not client.restore()
        with pytest.raises(CarrierRefused, match="does not own"):
            client.drop(["a"])
    with closing(HolderConnection(holder.path)) as connection:
        assert connection.own(2).yielded == 5
    assert names_held(holder) == {"a"}


def test_another_owner_is_never_overtaken(holder: HolderFolder, owner: WorkerProcess) -> None:
    """A server that lost its connection, and ownership with it, is told when it restores."""
    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        with closing(HolderConnection(holder.path)) as connection:
            connection.own(1)
            connection.give_up(0)
        owner.ask("own", 2)
        with pytest.raises(CarrierOwned):
            client.put({"a": sealed_memfd("a", b"1")})
        with pytest.raises(CarrierOwned):
            client.make("b", 4096)
        client.close()
        with pytest.raises(CarrierOwned):
            client.restore()


def test_memory_is_made_in_the_holder(holder: HolderFolder, connection: HolderConnection) -> None:
    """All pages are allocated, sealed and zero, and nobody else can open the file."""
    connection.own(1)
    size = wire.STEP_BYTES + 4096
    made = connection.make("extent-1.data", size)
    status = os.fstat(made.descriptor)
    assert (status.st_size, status.st_mode & 0o777) == (size, 0o600)
    assert status.st_blocks * 512 >= size
    assert made.identity == (
        DescriptorKind.MEMFD,
        wire.REQUIRED_SEALS,
        size,
        status.st_dev,
        status.st_ino,
    )
    assert os.pread(made.descriptor, 4, wire.STEP_BYTES) == bytes(4)
    assert names_held(holder) == {"extent-1.data"}
    with pytest.raises(CarrierRefused, match="held already"):
        connection.make("extent-1.data", 4096)
    os.close(made.descriptor)


def test_deposits_do_not_wait_for_memory_that_is_made(holder: HolderFolder) -> None:
    """Many are answered while the holder allocates, and the memory is a deposit afterwards."""
    descriptor, count = sealed_memfd("a", b"1"), 0
    with closing(HolderClient(holder.path)) as client, ThreadPoolExecutor(1) as threads:
        client.own(1)
        making = threads.submit(client.make, "large", 8 * wire.STEP_BYTES)
        while not making.done():
            assert client.put({"a": descriptor})
            count += 1
        assert count > 1
        assert (client.is_lost(), client.behind) == (False, 0)
        client.close()
        assert client.behind == 0
        assert not client.put({"b": descriptor})
        assert client.behind == 3
        assert client.restore()
        assert (client.behind, names_held(holder)) == (0, {"a", "b", "large"})
        wire.close_all([descriptor, making.result()])


def test_memory_made_beside_a_loss_is_deposited_again(holder: HolderFolder) -> None:
    """A reconciliation in between may have dropped it, since nobody knew it yet."""
    with closing(HolderClient(holder.path)) as client, ThreadPoolExecutor(1) as threads:
        client.own(1)
        making = threads.submit(client.make, "large", 8 * wire.STEP_BYTES)
        assert wait_until(lambda: "memfd:large" in open_files(holder.pid))
        os.kill(holder.pid, signal.SIGSTOP)
        client.close()
        client.put({})
        assert not making.done()
        os.kill(holder.pid, signal.SIGCONT)
        descriptor = making.result(LIMIT)
        assert client.behind == 1
        assert client.restore()
        assert (client.behind, names_held(holder)) == (0, {"large"})
        os.close(descriptor)


def open_files(pid: int) -> str:
    """Returns the names of the files that a process has open."""
    names = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            names.append(str(each.readlink()))
    return " ".join(names)


def test_a_process_that_cannot_claim_twice_makes_memory(
    holder: HolderFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection on which it owns makes it, as for a stranger before Linux 6.9."""

    def refuse(*_: object) -> None:
        raise CarrierOwned("pid 0 owns")

    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        monkeypatch.setattr(HolderConnection, "own", refuse)
        os.close(client.make("made", 4096))
    assert names_held(holder) == {"made"}


def test_more_memory_than_there_is_is_refused(
    holder: HolderFolder, connection: HolderConnection
) -> None:
    """The reason has both numbers, the holder lives, and nothing is held."""
    connection.own(1)
    with pytest.raises(CarrierFull, match=r"extent-1 needs 4611686018427387904 bytes, and .* has"):
        connection.make("extent-1", 1 << 62)
    assert names_held(holder) == set()
    os.close(connection.make("extent-1", 4096).descriptor)


def test_memory_that_nobody_waits_for_is_not_held(holder: HolderFolder) -> None:
    """A peer that hangs up while the holder allocates ends the allocation."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.connect(str(holder.socket))
        pidfd = os.pidfd_open(os.getpid())
        wire.send(raw, wire.HEADER.pack(wire.VERSION, Verb.OWN, 0) + wire.OWN.pack(1, 0), [pidfd])
        os.close(pidfd)
        assert wire.receive(raw)[0][1] == Result.DONE
        body = wire.MAKE.pack(8 * wire.STEP_BYTES, wire.REQUIRED_SEALS) + b"large"
        wire.send(raw, wire.HEADER.pack(wire.VERSION, Verb.MAKE, 0) + body)
    with closing(HolderConnection(holder.path)) as connection:
        connection.own(1)
        os.close(connection.make("large", 4096).descriptor)


def test_a_generation_table_is_continued(
    owner: WorkerProcess, connection: HolderConnection
) -> None:
    """The store's next process counts in the table that readers have mapped before."""
    table = GenerationTable.make(1, 4)
    export = table.describe()
    reader = memoryview(mmap.mmap(export.descriptor, 0, prot=mmap.PROT_READ)).cast("Q")
    connection.own(1)
    connection.put([("extent-1.generations", carried(export.descriptor))])
    connection.give_up(0)
    table.close()
    owner.ask("own", 2)
    owner.ask("write_generation", "extent-1.generations", 2, 8)
    assert list(reader) == [0, 0, 8, 0]


def test_a_process_s_death_is_seen_through_the_holder(
    owners: list[WorkerProcess], connection: HolderConnection
) -> None:
    """A pidfd that a dead owner deposited tells the next one that a worker died meanwhile."""
    first, worker, _ = owners
    first.ask("own", 1)
    first.ask("put_pidfd", "process-1", worker.pid)
    first.kill()
    connection.own(2)
    ((name, pidfd),) = connection.descriptors()
    assert (name, wire.is_dead(pidfd.descriptor)) == ("process-1", False)
    worker.kill()
    assert wire.is_dead(pidfd.descriptor)
    os.close(pidfd.descriptor)


def test_a_name_keeps_its_memory(holder: HolderFolder, connection: HolderConnection) -> None:
    """A deposit is repeated without harm, and another's memory under the name is refused."""
    connection.own(1)
    one, other = sealed_memfd("a", b"one"), sealed_memfd("a", b"other")
    for _ in range(2):
        connection.put([("a", carried(one))])
    with pytest.raises(CarrierRefused, match="another identity"):
        connection.put(
            [
                ("b", carried(one)),
                ("a", carried(other)),
            ]
        )
    assert names_held(holder) == {"a"}
    connection.drop(["a", "never"])
    assert names_held(holder) == set()
    wire.close_all([one, other])


def test_a_descriptor_is_compared_with_its_announcement(connection: HolderConnection) -> None:
    """The holder refuses a descriptor of another identity, and one that is no sealed memfd."""
    connection.own(1)
    one, other = sealed_memfd("a", b"one"), sealed_memfd("a", b"one")
    with pytest.raises(CarrierRefused, match="announced as"):
        connection.put([("a", CarriedDescriptor(one, DescriptorIdentity.of(other)))])
    with Path(os.devnull).open() as file, pytest.raises(CarrierRefused, match="neither a memfd"):
        connection.put([("a", CarriedDescriptor(file.fileno(), DescriptorIdentity.of(one)))])
    assert list(connection.descriptors()) == []
    wire.close_all([one, other])


def test_a_client_compares_too(tmp_path: Path) -> None:
    """Swapped descriptors, and one more than announced, are refused by who gets them."""
    one, other = sealed_memfd("one", b"1"), sealed_memfd("other", b"2")
    entries = b"".join(
        wire.pack_entry(name, DescriptorIdentity.of(each))
        for name, each in (("one", one), ("other", other))
    )
    answer = wire.HEADER.pack(wire.VERSION, Result.DONE, 2) + wire.PAGE.pack(2, 0) + entries
    for swapped in ([other, one], [one, other, one], [one]):
        folder = tmp_path / str(len(swapped))
        folder.mkdir()
        with closing(wire.listen(folder)) as listener, closing(HolderConnection(folder)) as client:
            peer, _ = listener.accept()
            with peer:
                wire.send(peer, answer, swapped)
                with pytest.raises(CarrierRefused):
                    list(client.descriptors())
    wire.close_all([one, other])


def test_a_number_that_was_used_again_is_not_deposited(holder: HolderFolder) -> None:
    """A descriptor that was closed too early is not taken for the one that has its number now."""
    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        one = sealed_memfd("one", b"1")
        client.put({"one": one})
        other = sealed_memfd("other", b"2")
        os.dup2(other, one)
        client.close()
        client.drop(["one"])
        client.put({"two": other})
        os.dup2(sealed_memfd("third", b"3"), other)
        with pytest.raises(CarrierRefused, match="two is not what"):
            client.restore()


@pytest.mark.skipif(not other_user.POSSIBLE, reason="only root can be several users")
def test_another_user_gets_nothing() -> None:
    """Neither by the folder's mode, nor where that was opened by mistake."""
    with tempfile.TemporaryDirectory() as folder, HolderFolder(Path(folder, "holder")) as holder:
        Path(folder).chmod(0o711)
        with pytest.raises(PermissionError):
            other_user.as_user(STRANGER, STRANGER, lambda: asked(holder.socket))
        holder.path.chmod(0o711)
        holder.socket.chmod(0o666)
        assert other_user.as_user(STRANGER, STRANGER, lambda: asked(holder.socket)) == b""
        assert f"uid {STRANGER}" in holder.line()
        assert names_held(holder) == set()


def asked(path: Path) -> bytes:
    """Asks for all descriptors, and returns the answer; nothing if the holder hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(LIMIT)
        peer.connect(str(path))
        with suppress(BrokenPipeError):
            peer.send(wire.HEADER.pack(wire.VERSION, Verb.GET, 0) + wire.SERIAL.pack(0))
        with suppress(ConnectionResetError):
            return peer.recv(wire.MOST_BYTES)
        return b""


def test_only_one_s_own_pidfd_is_an_owner_s(holder: HolderFolder, owner: WorkerProcess) -> None:
    """Another process's, or no pidfd at all, gives no ownership."""
    message = wire.HEADER.pack(wire.VERSION, Verb.OWN, 0) + wire.OWN.pack(1, 0)
    strangers = os.pidfd_open(owner.pid)
    memory = sealed_memfd("a", b"1")
    for descriptors in ((), (strangers,), (memory,), (strangers, memory)):
        assert exchange(holder.path, message, descriptors)[0] == Result.UNSUITABLE
    assert owner.ask("own", 1) == Former(0, None)
    wire.close_all([strangers, memory])


@pytest.mark.parametrize(
    ("message", "result"),
    [
        (wire.HEADER.pack(2, Verb.GET, 0), Result.UNKNOWN_VERSION),
        (wire.HEADER.pack(wire.VERSION, 99, 0), Result.UNKNOWN_VERB),
        (wire.HEADER.pack(wire.VERSION, Verb.GET, 0), Result.MALFORMED),
        (b"\x01", Result.MALFORMED),
        (wire.HEADER.pack(wire.VERSION, Verb.OWN, 0) + b"1", Result.MALFORMED),
        (wire.HEADER.pack(wire.VERSION, Verb.PUT, 3), Result.NOT_OWNER),
    ],
)
def test_nonsense_is_refused_with_its_reason(
    holder: HolderFolder, message: bytes, result: Result
) -> None:
    """Unknown versions and verbs, and messages that are too short; others are still served."""
    found, reason = exchange(holder.path, message)
    assert found == result
    assert reason.decode()
    assert names_held(holder) == set()


def test_nonsense_of_an_owner_is_refused(connection: HolderConnection) -> None:
    """Wrong counts and names change nothing."""
    connection.own(1)
    for verb, body, count in (
        (Verb.PUT, b"", 1),
        (Verb.DROP, b"\x05abc", 1),
        (Verb.DROP, b"\x01 ", 1),
        (Verb.MAKE, wire.MAKE.pack(0, wire.REQUIRED_SEALS) + b"a", 0),
        (Verb.MAKE, wire.MAKE.pack(4096, 0) + b"a", 0),
        (Verb.YIELD, b"", 0),
    ):
        with pytest.raises(CarrierRefused):
            connection._request(verb, body, count=count)
    connection.drop(["a"])


def test_it_ends_as_the_owner_says(holder: HolderFolder) -> None:
    """At once, with status 0, and its socket goes with it."""
    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        client.put({"a": sealed_memfd("a", b"1")})
        client.end()
        assert client.behind == 0
    assert holder.wait_exit() == 0
    assert not holder.socket.exists()


def test_sigterm_right_before_a_wait_ends_it(tmp_path: Path) -> None:
    """The signal ends the next wait too, although it does not interrupt it."""
    command = [sys.executable, "-c", UNINTERRUPTED, str(tmp_path / "holder")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as holder:
        assert holder.stderr is not None
        assert "serves" in holder.stderr.readline()
        holder.terminate()
        try:
            assert holder.wait(LIMIT) == 0
        finally:
            holder.kill()


def test_it_ends_after_the_grace_without_an_owner(tmp_path: Path) -> None:
    """Memory that nobody comes for is freed."""
    with HolderFolder(tmp_path / "holder", "--holder-grace", "0.01") as holder:
        assert holder.wait_exit() == 0
        assert "no owner for 0.01 seconds" in holder.line()


def test_the_grace_begins_when_the_owner_dies(tmp_path: Path) -> None:
    """Not before, and again for each owner."""
    with WorkerProcess("server", deposit_worker, tmp_path / "holder") as owner:
        # It has imported all, so that it owns before the first grace is over.
        assert owner.ask("state") == (True, 0)
        with HolderFolder(tmp_path / "holder", "--holder-grace", "3") as holder:
            owner.ask("own", 1)
            assert "instance 1 owns" in holder.line()
            owner.kill()
            assert "the owner is dead" in holder.line()
            assert "no owner for 3 seconds" in holder.line()
            assert holder.wait_exit() == 0


def test_the_grace_begins_with_a_yield(tmp_path: Path) -> None:
    """The process lives on, and nobody comes."""
    with (
        HolderFolder(tmp_path / "holder", "--holder-grace", "2") as holder,
        closing(HolderConnection(holder.path)) as connection,
    ):
        connection.own(1)
        connection.give_up(7)
        assert holder.wait_exit() == 0
        lines = [holder.line() for _ in range(3)]
    assert "leaves its memory to the next" in lines[1]
    assert "no owner for 2 seconds" in lines[2]


def test_one_holder_serves_a_folder(holder: HolderFolder) -> None:
    """A second one is refused with the first one's pid, and the first one goes on."""
    found = subprocess.run(
        wire.holder_command([str(holder.path)]), capture_output=True, text=True, check=False
    )
    assert found.returncode == wire.EXIT_FAILED
    assert f"another kvstore-holder (pid {holder.pid}) serves" in found.stderr
    assert names_held(holder) == set()


def test_a_folder_open_to_others_is_not_served(tmp_path: Path) -> None:
    """A link and a path that is too long for a socket are refused too, with a reason."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for name, reason in (("open", "chmod 700 it"), ("link", "is a link"), ("a" * 200, "too long")):
        found = subprocess.run(
            wire.holder_command([str(tmp_path / name)]), capture_output=True, text=True, check=False
        )
        assert found.returncode == wire.EXIT_FAILED
        assert reason in found.stderr


def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    """The reason has the limit, the need and the settings that raise it."""
    command = subprocess.list2cmdline(wire.holder_command([str(tmp_path / "holder")]))
    found = subprocess.run(
        ["sh", "-c", f"ulimit -n 1000; exec {command}"], capture_output=True, text=True, check=False
    )
    assert found.returncode == wire.EXIT_FAILED
    assert "the hard limit of open files is 1000" in found.stderr
    assert "raise LimitNOFILE" in found.stderr


def test_a_full_holder_refuses(tmp_path: Path) -> None:
    """It takes as many descriptors as it may have, and says what to raise; all stay held."""
    with ExitStack() as stack:
        most = 300
        holder = HolderFolder(tmp_path / "holder", "--descriptors", str(most))
        stack.callback(holder.__exit__)
        limit = most + wire.RESERVE
        holder.start(f"ulimit -n {limit};")
        client = stack.enter_context(closing(HolderClient(holder.path)))
        client.own(1)
        memory = sealed_memfd("a", b"1")
        client.put({f"a-{each}": memory for each in range(most)})
        with pytest.raises(CarrierFull, match="300 descriptors are held, of at most 300"):
            client.put({"b": memory})
        assert (client.behind, len(names_held(holder))) == (0, most)


def test_a_started_holder_is_isolated(tmp_path: Path) -> None:
    """It is the one file, without site packages, in a session of its own."""
    start_holder(tmp_path / "holder")
    holder = HolderFolder(tmp_path / "holder")
    with closing(HolderClient(holder.path)) as client:
        client.own(1)
        command = Path(f"/proc/{holder.pid}/cmdline").read_text().split("\0")
        assert command[1:3] == ["-I", "-S"]
        assert os.getsid(holder.pid) == holder.pid
        with pytest.raises(CarrierLost, match="exit status 1"):
            start_holder(tmp_path / "holder")
        client.end()


def test_the_command_becomes_the_holder(tmp_path: Path) -> None:
    """``kvstore-holder`` is the same file; its help names every option."""
    found = subprocess.run(
        [sys.executable, "-m", "kvstore.holder", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"--holder-grace", "--descriptors", "--background"} <= set(found.stdout.split())
    options = wire.parse([str(tmp_path)])
    assert (options.holder_grace, options.descriptors) == (120.0, 1024)
