"""The contract of every remote engine: in memory, in helpers, and on real servers."""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from ssl import create_default_context
from tempfile import TemporaryDirectory
from time import monotonic, time

import pytest

from kvstore.remote.engine import ReadResult, RemoteEngine
from kvstore.remote.engine_url import open_engine
from kvstore.remote.errors import DeadlinePassed, EngineClosed, ReplyMalformed
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from remote.memory_engine import MemoryEngine
from remote.seaweed_server import seaweed_server
from remote.stand_in_helpers import stand_in_engine
from remote.valkey_groups import valkey_cluster, valkey_sentinel
from remote.valkey_server import free_port, redis_binary, valkey_server
from wire.certificates import Authority

GENEROUS = 60.0
LIFE_MS = 600_000
MakeEngine = Callable[[], RemoteEngine]


def soon() -> float:
    """Returns a deadline that no healthy engine misses."""
    return monotonic() + GENEROUS


@contextmanager
def memory(folder: Path) -> Iterator[MakeEngine]:
    """A dictionary of this process."""
    del folder
    values: dict[bytes, tuple[bytes, int]] = {}
    yield lambda: MemoryEngine(values)


@contextmanager
def folder_of_files(folder: Path) -> Iterator[MakeEngine]:
    """A folder, in this process."""
    folders = pytest.importorskip(
        "kvstore.remote.objects.folder_engine", reason="needs the package obstore: run make venv"
    )
    yield lambda: folders.FolderEngine(folder)


@contextmanager
def folder_in_helpers(folder: Path) -> Iterator[MakeEngine]:
    """A folder as servers use it."""
    pytest.importorskip("obstore", reason="needs the package obstore: run make venv")
    yield lambda: open_engine(f"file://{folder}")


@contextmanager
def stand_in(folder: Path) -> Iterator[MakeEngine]:
    """An engine with no abilities but the necessary ones, in helpers."""
    yield lambda: stand_in_engine(folder)


@contextmanager
def valkey_over_unix(folder: Path) -> Iterator[MakeEngine]:
    """A server on a unix socket."""
    with valkey_server(folder) as server:
        yield lambda: server.engine(server.unix)


@contextmanager
def valkey_over_tcp(folder: Path) -> Iterator[MakeEngine]:
    """A server on a port."""
    with valkey_server(folder) as server:
        yield lambda: server.engine(server.tcp)


@contextmanager
def valkey_cluster_of_six(folder: Path) -> Iterator[MakeEngine]:
    """Three primaries with a replica each, which has to have each control value."""
    with valkey_cluster(folder) as cluster:
        yield lambda: cluster.engine(replicas=1)


@contextmanager
def valkey_with_sentinel(folder: Path) -> Iterator[MakeEngine]:
    """A primary that a Sentinel names, and a replica that has to have each control value."""
    with valkey_sentinel(folder) as group:
        yield lambda: group.engine(replicas=1)


@contextmanager
def redis_over_tls(folder: Path) -> Iterator[MakeEngine]:
    """Debian's server, with certificates of the test."""
    authority = Authority(folder)
    own = authority.issue("server", hosts=["127.0.0.1"])
    port = free_port()
    settings = (
        f"tls-port {port}",
        f"tls-cert-file {own.cert}",
        f"tls-key-file {own.key}",
        f"tls-ca-cert-file {authority.cert}",
        "tls-auth-clients no",
    )
    with valkey_server(folder, *settings, binary=redis_binary(), port=0) as server:
        yield lambda: ValkeyEngine(
            EngineAddress(None, "127.0.0.1", port, is_tls=True),
            credential=server.credential,
            tls=create_default_context(cafile=authority.cert),
            connect_seconds=5.0,
        )


@contextmanager
def s3_server(folder: Path) -> Iterator[MakeEngine]:
    """SeaweedFS."""
    pytest.importorskip("obstore", reason="needs the package obstore: run make venv")
    with seaweed_server(folder) as server:
        yield server.engine


ENGINES = {
    "memory": memory,
    "folder": folder_of_files,
    "folder in helpers": folder_in_helpers,
    "stand-in in helpers": stand_in,
    "valkey over unix": valkey_over_unix,
    "valkey over tcp": valkey_over_tcp,
    "valkey cluster": valkey_cluster_of_six,
    "valkey sentinel": valkey_with_sentinel,
    "redis over tls": redis_over_tls,
    "s3": s3_server,
}


# make test has one engine of each kind. The others are for make test-engines.
QUICK = frozenset({"memory", "folder in helpers", "valkey over unix"})


@pytest.fixture(
    scope="module",
    params=[
        each if each in QUICK else pytest.param(each, marks=pytest.mark.engines) for each in ENGINES
    ],
)
def make_engine(request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """Returns a function that connects one more engine to the same values."""
    with TemporaryDirectory(prefix="kv-") as name, ENGINES[request.param](Path(name)) as made:
        yield made


@pytest.fixture
def engine(make_engine: MakeEngine) -> Iterator[RemoteEngine]:
    """Returns an engine for one test."""
    made = make_engine()
    yield made
    made.close()


def needs_expiry(engine: RemoteEngine) -> None:
    """Skips a test of expiry on an engine that says that it has none."""
    if not engine.capabilities.expires:
        pytest.skip("needs an engine that expires values, which this one does not")


def needs_control_values(engine: RemoteEngine) -> None:
    """Skips a test of control values on an engine that says that it has none."""
    if not engine.capabilities.revisions:
        pytest.skip("needs an engine with control values, which this one does not have")


def fresh_names(count: int) -> list[bytes]:
    """Returns names that no other test uses."""
    return [b"kv1/{%032x}/%d" % (random.SystemRandom().getrandbits(128), at) for at in range(count)]


def put(engine: RemoteEngine, names: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Writes values, each of which has to be taken."""
    lives = [LIFE_MS - at for at in range(len(names))]
    results = engine.put_many(names, [memoryview(each) for each in values], lives, soon())
    assert list(results) == [None] * len(names)


def get(engine: RemoteEngine, name: bytes, size: int) -> tuple[ReadResult, bytes]:
    """Returns the result of one read, and the buffer."""
    buffer = bytearray(size)
    (result,) = engine.get_many([name], [memoryview(buffer)], soon())
    return result, bytes(buffer)


@pytest.mark.parametrize("size", [0, 1, 100, 16_384, 65_537, 1 << 20, (4 << 20) + 3])
def test_values_of_every_size_come_back(engine: RemoteEngine, size: int) -> None:
    """Several values of one size are read in order, byte by byte what was written."""
    names = fresh_names(5)
    values = [random.randbytes(size) for _ in names]
    put(engine, names, values)
    buffers = [bytearray(size) for _ in names]
    results = engine.get_many(names, [memoryview(each) for each in buffers], soon())
    assert list(results) == [ReadResult.READ] * len(names)
    assert buffers == values


def test_values_come_as_they_are_received(engine: RemoteEngine) -> None:
    """A buffer is whole when its result is yielded, before the next one is."""
    names = fresh_names(20)
    values = [random.randbytes(50_000) for _ in names]
    put(engine, names, values)
    buffers = [bytearray(50_000) for _ in names]
    results = engine.get_many(names, [memoryview(each) for each in buffers], soon())
    for index, result in enumerate(results):
        assert result is ReadResult.READ
        assert buffers[index] == values[index]


def test_missing_values_are_no_errors(engine: RemoteEngine) -> None:
    """They are told in their places, and the others are read."""
    names = fresh_names(6)
    put(engine, names[::2], [b"value"] * 3)
    buffers = [bytearray(5) for _ in names]
    results = engine.get_many(names, [memoryview(each) for each in buffers], soon())
    assert list(results) == [ReadResult.READ, ReadResult.MISSING] * 3
    assert buffers == [b"value", bytes(5)] * 3


@pytest.mark.parametrize("size", [1, 4, 6, 20_000, 1 << 21])
def test_a_value_of_another_size_is_never_read(engine: RemoteEngine, size: int) -> None:
    """Memory behind the buffer is untouched, and the next call works."""
    name, other = fresh_names(2)
    put(engine, [name, other], [random.randbytes(size), b"other"])
    memory = bytearray(b"\xee" * 100)
    results = engine.get_many([name], [memoryview(memory)[10:15]], soon())
    try:
        assert list(results) == [ReadResult.WRONG_SIZE]
    except ReplyMalformed:
        assert size > 5
    assert memory[:10] == b"\xee" * 10
    assert memory[15:] == b"\xee" * 85
    assert get(engine, other, 5) == (ReadResult.READ, b"other")


def test_the_last_value_under_a_name_stays(engine: RemoteEngine) -> None:
    """A value is replaced as a whole."""
    (name,) = fresh_names(1)
    for value in (b"first", b"second", b"3"):
        put(engine, [name], [value])
    assert get(engine, name, 1) == (ReadResult.READ, b"3")


@pytest.mark.parametrize("count", [0, 1, 128, 2500])
def test_existence_is_told_for_each_name(engine: RemoteEngine, count: int) -> None:
    """All, none, every third, and one name asked for twice."""
    names = fresh_names(count)
    assert engine.exists_many(names, soon()) == [False] * count
    put(engine, names[::3], [b"x"] * len(names[::3]))
    assert engine.exists_many(names, soon()) == [at % 3 == 0 for at in range(count)]
    assert engine.exists_many(names[::3] * 2, soon()) == [True] * 2 * len(names[::3])
    engine.delete_many(names[:-1], soon())
    last = (count - 1) % 3 == 0
    assert engine.exists_many(names, soon()) == [*([False] * (count - 1)), last][:count]


def test_deleted_values_are_gone(engine: RemoteEngine) -> None:
    """Names without a value may be deleted too."""
    names = fresh_names(10)
    put(engine, names[:8], [b"x"] * 8)
    engine.delete_many(names[4:], soon())
    assert engine.exists_many(names, soon()) == [True] * 4 + [False] * 6
    engine.delete_many([], soon())


def test_values_expire(engine: RemoteEngine) -> None:
    """A value with a short life leaves, and one with a long life stays."""
    needs_expiry(engine)
    short, long = fresh_names(2)
    values = [memoryview(b"x")] * 2
    assert list(engine.put_many([short, long], values, [1, LIFE_MS], soon())) == [None, None]
    end = soon()
    while engine.exists_many([short], soon())[0]:
        assert monotonic() < end
    assert engine.exists_many([long], soon()) == [True]


def test_a_refresh_extends_lives_and_shortens_none(engine: RemoteEngine) -> None:
    """Lives in the past and missing names do no harm."""
    needs_expiry(engine)
    short, long, missing = fresh_names(3)
    lives = [400, LIFE_MS]
    assert not any(engine.put_many([short, long], [memoryview(b"x")] * 2, lives, soon()))
    engine.refresh_many([short, long, missing], [LIFE_MS, -(10**12), LIFE_MS], soon())
    start = engine.time_ms(soon())
    end = soon()
    while engine.time_ms(soon()) < start + 500:
        assert monotonic() < end
    assert engine.exists_many([short, long, missing], soon()) == [True, True, False]


def test_a_control_value_is_set_once_or_replaced(engine: RemoteEngine) -> None:
    """The first of two hosts that set an absent one wins, and both learn it."""
    needs_control_values(engine)
    name = fresh_names(1)[0].replace(b"kv1", b"kvr")
    assert engine.control(name, soon()) is None
    assert engine.set_control(name, b"one", LIFE_MS, soon(), only_if_absent=True)
    assert not engine.set_control(name, b"two", LIFE_MS, soon(), only_if_absent=True)
    assert engine.control(name, soon()) == b"one"
    assert engine.set_control(name, b"three", LIFE_MS, soon(), only_if_absent=False)
    assert engine.control(name, soon()) == b"three"


def test_a_control_value_expires(engine: RemoteEngine) -> None:
    """A namespace that nobody uses leaves nothing in the engine."""
    needs_expiry(engine)
    name = fresh_names(1)[0].replace(b"kv1", b"kvr")
    assert engine.set_control(name, b"one", 1, soon(), only_if_absent=False)
    end = soon()
    while engine.control(name, soon()) is not None:
        assert monotonic() < end


@pytest.mark.parametrize("life", [0, -1, -(10**12)])
def test_a_life_in_the_past_deletes_nothing(engine: RemoteEngine, life: int) -> None:
    """A mistake of the caller cannot erase the value that is there."""
    (name,) = fresh_names(1)
    put(engine, [name], [b"x"])
    with pytest.raises(ValueError, match="life"):
        list(engine.put_many([name], [memoryview(b"y")], [life], soon()))
    assert get(engine, name, 1) == (ReadResult.READ, b"x")


def test_the_clock_is_real(engine: RemoteEngine) -> None:
    """An engine on this machine has this machine's clock, and it goes forward."""
    before = int(time() * 1000) - 1000
    first, second = engine.time_ms(soon()), engine.time_ms(soon())
    assert before <= first <= second <= int(time() * 1000) + 1000


CALLS: dict[str, Callable[[RemoteEngine, float], object]] = {
    "exists_many": lambda engine, deadline: engine.exists_many(fresh_names(1), deadline),
    "get_many": lambda engine, deadline: list(
        engine.get_many(fresh_names(1), [memoryview(bytearray(1))], deadline)
    ),
    "put_many": lambda engine, deadline: list(
        engine.put_many(fresh_names(1), [memoryview(b"x")], [LIFE_MS], deadline)
    ),
    "refresh_many": lambda engine, deadline: engine.refresh_many(
        fresh_names(1), [LIFE_MS], deadline
    ),
    "control": lambda engine, deadline: engine.control(fresh_names(1)[0], deadline),
    "set_control": lambda engine, deadline: engine.set_control(
        fresh_names(1)[0], b"x", LIFE_MS, deadline, only_if_absent=False
    ),
    "delete_many": lambda engine, deadline: engine.delete_many(fresh_names(1), deadline),
    "time_ms": lambda engine, deadline: engine.time_ms(deadline),
    "ping": lambda engine, deadline: engine.ping(deadline),
    "findings": lambda engine, deadline: engine.findings(deadline),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_deadline_that_passed_ends_every_call(engine: RemoteEngine, call: str) -> None:
    """Calls begun too late do nothing, and the engine works afterwards."""
    if "control" in call:
        needs_control_values(engine)
    engine.ping(soon())
    with pytest.raises(DeadlinePassed):
        CALLS[call](engine, monotonic() - 1.0)
    CALLS[call](engine, soon())


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_engine_refuses_every_call(make_engine: MakeEngine, call: str) -> None:
    """It may be closed twice."""
    made = make_engine()
    made.ping(soon())
    made.close()
    made.close()
    with pytest.raises(EngineClosed):
        CALLS[call](made, soon())


def test_an_iterator_that_is_given_up_costs_nothing_later(engine: RemoteEngine) -> None:
    """Replies that nobody waits for are not taken for those of a later call."""
    names = fresh_names(8)
    values = [b"%d" % at * 1000 for at in range(8)]
    put(engine, names, values)
    for _ in range(5):
        buffers = [memoryview(bytearray(1000)) for _ in names]
        reads = engine.get_many(names, buffers, soon())
        assert next(reads) is ReadResult.READ
        reads.close()  # type: ignore[attr-defined]  # every engine's are generators
        writes = engine.put_many(names, [memoryview(each) for each in values], [1000] * 8, soon())
        assert next(writes) is None
        writes.close()  # type: ignore[attr-defined]  # as above
        assert get(engine, names[7], 1000) == (ReadResult.READ, values[7])


def test_threads_do_not_mix_their_values(engine: RemoteEngine) -> None:
    """Eight threads write and read their own names over a few connections."""

    def work(seed: int) -> int:
        generator = random.Random(seed)
        right = 0
        for _ in range(20):
            names = fresh_names(4)
            values = [generator.randbytes(generator.randrange(1, 30_000)) for _ in names]
            put(engine, names, values)
            buffers = [bytearray(len(each)) for each in values]
            list(engine.get_many(names, [memoryview(each) for each in buffers], soon()))
            right += buffers == values
        return right

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 160


def test_two_hosts_share_the_values(make_engine: MakeEngine) -> None:
    """One engine reads what another one wrote, and misses what that deleted."""
    one, other = make_engine(), make_engine()
    try:
        names = fresh_names(2)
        put(one, names, [b"page", b"page"])
        assert get(other, names[1], 4) == (ReadResult.READ, b"page")
        other.delete_many(names, soon())
        assert one.exists_many(names, soon()) == [False, False]
    finally:
        one.close()
        other.close()
