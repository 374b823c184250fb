"""Engines in helpers: a hang, a crash or a late answer costs a call, and no memory of others."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest

from kvstore.remote.engine import ReadResult
from kvstore.remote.engine_url import open_engine
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineClosed,
    EngineCut,
    EngineRefused,
    EngineUnreachable,
    RemoteError,
    ReplyMalformed,
)
from kvstore.remote.process.helper_process import MOST_STARTS, HelperCommand
from kvstore.remote.process.process_engine import ProcessEngine
from remote.stand_in_engine import CAPABILITIES, gate_of
from remote.stand_in_helpers import stand_in_engine

GENEROUS = 60.0
LIFE_MS = 600_000
NAME = b"kv1/{a}/1"


def soon() -> float:
    """Returns a deadline that no healthy helper misses."""
    return monotonic() + GENEROUS


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ProcessEngine]:
    """Returns an engine over one helper, which runs."""
    made = stand_in_engine(tmp_path, helpers=1)
    made.ping(soon())
    yield made
    made.close()


def put(engine: ProcessEngine, *names: bytes, size: int = 1000) -> None:
    """Writes values, each of one byte that is the length of its name."""
    values = [memoryview(bytes([len(name)]) * size) for name in names]
    assert not any(engine.put_many(names, values, [LIFE_MS] * len(names), soon()))


def get(engine: ProcessEngine, buffer: bytearray, deadline: float) -> list[ReadResult]:
    """Reads one value."""
    return list(engine.get_many([NAME], [memoryview(buffer)], deadline))


def helpers() -> set[int]:
    """Returns the processes of this one's helpers."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except (OSError, IndexError):
            continue
        if b"kvstore.remote.process.helper" in command and int(parent) == os.getpid():
            found.add(int(folder.name))
    return found


CALLS: dict[str, Callable[[ProcessEngine, float], object]] = {
    "exists_many": lambda engine, deadline: engine.exists_many([NAME], deadline),
    "get_many": lambda engine, deadline: get(engine, bytearray(1000), deadline),
    "put_many": lambda engine, deadline: list(
        engine.put_many([NAME], [memoryview(b"x")], [LIFE_MS], deadline)
    ),
    "delete_many": lambda engine, deadline: engine.delete_many([NAME], deadline),
    "time_ms": lambda engine, deadline: engine.time_ms(deadline),
    "ping": lambda engine, deadline: engine.ping(deadline),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_hangs_ends_at_its_deadline(
    engine: ProcessEngine, tmp_path: Path, call: str
) -> None:
    """Its helper is killed, and the next one works once the engine does."""
    (old,) = helpers()
    os.mkfifo(tmp_path / "gate")
    start = monotonic()
    with pytest.raises(DeadlinePassed):
        CALLS[call](engine, start + 0.2)
    assert monotonic() - start < GENEROUS / 2
    (tmp_path / "gate").unlink()
    engine.ping(soon())
    put(engine, NAME)
    assert old not in helpers()
    assert len(helpers()) == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_crash_ends_the_call_alone(engine: ProcessEngine, tmp_path: Path, call: str) -> None:
    """The store lives, and a new helper serves the next call."""
    put(engine, NAME)
    (tmp_path / "crash").touch()
    with pytest.raises(EngineCut):
        CALLS[call](engine, soon())
    engine.ping(soon())
    assert engine.exists_many([NAME], soon()) == [True]


def test_a_late_read_reaches_nobodys_memory(engine: ProcessEngine, tmp_path: Path) -> None:
    """After the deadline the caller's buffer is another's, and stays as that one left it."""
    put(engine, NAME)
    gate = gate_of(tmp_path, NAME)
    os.mkfifo(gate)
    buffer = bytearray(1000)
    with pytest.raises(DeadlinePassed):
        get(engine, buffer, monotonic() + 0.2)
    buffer[:] = b"o" * 1000
    engine.ping(soon())
    # The helper that would write the second half is dead: nobody has the pipe open to read.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    gate.unlink()
    assert buffer == b"o" * 1000
    assert get(engine, buffer, soon()) == [ReadResult.READ]
    assert buffer == bytes([len(NAME)]) * 1000


def test_results_before_a_hang_count(engine: ProcessEngine, tmp_path: Path) -> None:
    """A value is whole when it is told, though the next one never comes."""
    names = [b"1", b"22"]
    put(engine, *names)
    os.mkfifo(gate_of(tmp_path, names[1]))
    buffers = [bytearray(1000), bytearray(1000)]
    reads = engine.get_many(names, [memoryview(each) for each in buffers], monotonic() + 5.0)
    assert next(reads) is ReadResult.READ
    assert buffers[0] == b"\1" * 1000
    with pytest.raises(DeadlinePassed):
        next(reads)
    engine.ping(soon())


def test_values_that_exceed_the_memory_come_in_parts(engine: ProcessEngine) -> None:
    """Several calls of the helper serve one of the caller; a value too long is a mistake."""
    names = [b"n" * (at + 1) for at in range(10)]
    put(engine, *names, size=3 << 20)
    buffers = [bytearray(3 << 20) for _ in names]
    results = engine.get_many(names, [memoryview(each) for each in buffers], soon())
    assert list(results) == [ReadResult.READ] * 10
    assert [each == bytes([at + 1]) * (3 << 20) for at, each in enumerate(buffers)] == [True] * 10
    assert engine.capabilities.most_bytes == 8 << 20
    with pytest.raises(ValueError, match="most"):
        put(engine, NAME, size=(8 << 20) + 1)


def test_helpers_that_always_crash_are_started_seldom(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    """An engine that cannot live costs the machine a few starts, and then one at times."""
    refused: list[RemoteError] = []
    started = helpers()
    while len(refused) < 3:
        (tmp_path / "crash").touch()
        try:
            engine.ping(soon())
        except EngineUnreachable as error:
            refused.append(error)
        except EngineCut:
            started |= helpers()
    assert all("one starts soon" in str(error) for error in refused)
    assert len(started) <= MOST_STARTS + 3


def test_an_engine_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The error of its own is the caller's."""
    missing = open_engine(f"file://{tmp_path}/missing")
    with pytest.raises(EngineUnreachable, match="missing"):
        missing.ping(soon())
    missing.close()
    wrong = ProcessEngine(
        HelperCommand("remote.stand_in_engine:Nothing", {}, 1 << 20), CAPABILITIES, helpers=1
    )
    with pytest.raises(EngineRefused, match="Nothing"):
        wrong.ping(soon())
    wrong.close()


def test_a_helper_that_speaks_nonsense_is_killed(engine: ProcessEngine) -> None:
    """Its messages are data: none runs, and a wrong one ends the helper."""
    (old,) = helpers()
    helper = engine._pool.take(soon())
    engine._pool.give(helper)
    other = helper._connection
    helper._connection = _Nonsense(other)  # type: ignore[assignment]
    with pytest.raises(ReplyMalformed):
        engine.exists_many([NAME], soon())
    engine.ping(soon())
    assert old not in helpers()
    other.close()


class _Nonsense:
    """A connection that answers with bytes of a pickle."""

    def __init__(self, real: object) -> None:
        self._real = real

    def send_bytes(self, message: bytes) -> None:
        """Takes anything."""

    def poll(self, seconds: float = 0.0) -> bool:
        """Has something to say once it was asked for it."""
        return seconds > 0

    def recv_bytes(self, most: int) -> bytes:
        """Returns no JSON."""
        del most
        return b"\x80\x04N."

    def close(self) -> None:
        """Does nothing."""


def test_closing_kills_the_helpers(tmp_path: Path) -> None:
    """Also one that hangs in a call, whose caller learns it."""
    engine = stand_in_engine(tmp_path)
    engine.ping(soon())
    os.mkfifo(tmp_path / "gate")
    raised: list[RemoteError] = []

    def wait() -> None:
        try:
            engine.exists_many([NAME], soon())
        except RemoteError as error:
            raised.append(error)

    thread = Thread(target=wait)
    thread.start()
    end = soon()
    while not engine._pool._used:
        assert monotonic() < end
    engine.close()
    thread.join(GENEROUS)
    assert [type(each) for each in raised] in ([EngineCut], [EngineClosed])
    assert helpers() == set()


def test_a_stopped_helper_is_killed(engine: ProcessEngine) -> None:
    """One that the kernel does not run is none that can be waited for."""
    (stopped,) = helpers()
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(DeadlinePassed):
        engine.ping(monotonic() + 0.2)
    engine.ping(soon())
    assert stopped not in helpers()
