"""The engine of tests fails as it is asked to: otherwise tests with it would show nothing."""

from threading import Thread
from time import monotonic

import pytest

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import DeadlinePassed, EngineBusy, EngineFull
from remote.memory_engine import MemoryEngine

GENEROUS = 60.0


@pytest.fixture
def engine() -> MemoryEngine:
    """Returns an engine with three values."""
    made = MemoryEngine()
    values = [memoryview(b"value")] * 3
    assert not any(made.put_many([b"a", b"b", b"c"], values, [10**6] * 3, monotonic() + GENEROUS))
    return made


def read(engine: MemoryEngine, name: bytes, into: bytearray, seconds: float = GENEROUS) -> object:
    """Returns the result of one read."""
    (result,) = engine.get_many([name], [memoryview(into)], monotonic() + seconds)
    return result


def test_it_corrupts_and_loses_by_name(engine: MemoryEngine) -> None:
    """One bit of a corrupt value differs, and a lost one was reported as written."""
    engine.set(corrupts=lambda name: name == b"b", loses=lambda name: name == b"d")
    content = bytearray(5)
    assert read(engine, b"b", content) is ReadResult.READ
    assert content == b"vamue"
    assert list(engine.put_many([b"d"], [memoryview(b"x")], [10**6], monotonic() + 1)) == [None]
    assert engine.exists_many([b"a", b"d"], monotonic() + GENEROUS) == [True, False]


def test_it_evicts_fills_and_raises(engine: MemoryEngine) -> None:
    """An evicted value is missing, a new one finds no memory, and an error comes from all calls."""
    engine.evict(b"a")
    assert read(engine, b"a", bytearray(5)) is ReadResult.MISSING
    engine.set(most_values=2)
    names = [b"b", b"e"]
    told = list(engine.put_many(names, [memoryview(b"x")] * 2, [10**6] * 2, monotonic() + 1))
    assert [type(each) for each in told] == [type(None), EngineFull]
    engine.set(error=EngineBusy("a script"))
    with pytest.raises(EngineBusy):
        engine.ping(monotonic() + GENEROUS)


def test_its_clock_expires_values(engine: MemoryEngine) -> None:
    """A test moves the clock instead of waiting."""
    engine.ahead_ms = 2 * 10**6
    assert engine.exists_many([b"a"], monotonic() + GENEROUS) == [False]


def test_a_hung_call_ends_at_its_deadline(engine: MemoryEngine) -> None:
    """It writes nothing afterwards."""
    engine.set(is_hung=True)
    content = bytearray(5)
    with pytest.raises(DeadlinePassed):
        read(engine, b"a", content, seconds=0.01)
    engine.set(is_hung=False)
    assert content == bytes(5)


def test_a_late_read_writes_after_its_deadline(engine: MemoryEngine) -> None:
    """It stands for engines that know no deadline, which say so."""
    engine.set(is_hung=True, is_late=True)
    assert not engine.capabilities.keeps_deadlines
    content, results = bytearray(5), []
    thread = Thread(target=lambda: results.append(read(engine, b"a", content, seconds=-1.0)))
    thread.start()
    end = monotonic() + GENEROUS
    while "get_many" not in engine.calls:
        assert monotonic() < end
    assert content == bytes(5)
    engine.set(is_hung=False)
    thread.join()
    assert (results, content) == ([ReadResult.READ], b"value")
