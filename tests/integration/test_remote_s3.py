"""A real server of S3 that is killed, stopped or refuses: errors of the right class, in time."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.engine_url import open_engine
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineUnreachable,
    Reaction,
    RemoteError,
)
from kvstore.remote.finding import FindingKind
from remote.seaweed_server import SECRET_KEY, SeaweedServer, seaweed_server

pytestmark = pytest.mark.engines
pytest.importorskip("obstore", reason="needs the package obstore: run make venv")
GENEROUS = 60.0
LIFE_MS = 600_000


def soon() -> float:
    """Returns a deadline that no healthy server misses."""
    return monotonic() + GENEROUS


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    """Returns a server for all tests of this file."""
    with TemporaryDirectory(prefix="kv-") as name, seaweed_server(Path(name)) as running:
        yield running


@pytest.fixture
def engine(server: SeaweedServer) -> Iterator[RemoteEngine]:
    """Returns an engine on the bucket."""
    made = server.engine()
    yield made
    made.close()


def fresh_names(count: int) -> list[bytes]:
    """Returns names that no other test uses."""
    return [b"kv1/{%032x}/%d" % (random.SystemRandom().getrandbits(128), at) for at in range(count)]


def put(engine: RemoteEngine, names: list[bytes]) -> None:
    """Writes each name as its own value."""
    values = [memoryview(name) for name in names]
    assert not any(engine.put_many(names, values, [LIFE_MS] * len(names), soon()))


def test_hosts_that_create_a_control_value_at_once_read_the_same_one(server: SeaweedServer) -> None:
    """Two may both get True, since this server once let two conditions pass."""
    (name,) = fresh_names(1)
    engines = [server.engine() for _ in range(4)]

    def create(number: int) -> bool:
        value = b"%d" % number
        return engines[number].set_control(name, value, LIFE_MS, soon(), only_if_absent=True)

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, range(4)))
    values = {each.control(name, soon()) for each in engines}
    assert len(values) == 1
    assert values <= {b"%d" % number for number, has_won in enumerate(won) if has_won}
    assert not any(create(number) for number in range(4))
    for each in engines:
        each.close()


def test_a_stopped_server_costs_the_deadline(server: SeaweedServer, engine: RemoteEngine) -> None:
    """Small calls have it as well as large ones, and the engine works after the stop."""
    names = fresh_names(4)
    put(engine, names)
    server.process.stop()
    for call in (
        lambda deadline: engine.exists_many(names, deadline),
        lambda deadline: list(
            engine.get_many(names, [memoryview(bytearray(9)) for _ in names], deadline)
        ),
        lambda deadline: list(
            engine.put_many(names, [memoryview(b"x")] * 4, [LIFE_MS] * 4, deadline)
        ),
        lambda deadline: engine.delete_many(names, deadline),
        lambda deadline: engine.control(names[0], deadline),
        engine.time_ms,
        engine.ping,
    ):
        start = monotonic()
        with pytest.raises(DeadlinePassed):
            call(start + 0.1)
        assert monotonic() - start < GENEROUS / 2
    server.process.resume()
    engine.ping(soon())


def test_a_killed_server_is_unreachable_and_comes_back(
    server: SeaweedServer, engine: RemoteEngine
) -> None:
    """Its objects are there again."""
    names = fresh_names(3)
    put(engine, names)
    server.process.kill()
    with pytest.raises(EngineUnreachable):
        engine.exists_many(names, soon())
    server.start()
    assert engine.exists_many(names, soon()) == [True] * 3


def test_a_wrong_key_is_the_operators(server: SeaweedServer) -> None:
    """It is no miss, and no reason to wait."""
    server.write_credential("wrong")
    made = server.engine()
    server.write_credential(SECRET_KEY)
    for call in (
        lambda: made.ping(soon()),
        lambda: made.control(b"kvr/{a}", soon()),
        lambda: list(made.put_many([b"kv1/{a}/b"], [memoryview(b"x")], [LIFE_MS], soon())),
    ):
        with pytest.raises(RemoteError) as raised:
            call()
        assert raised.value.reaction is Reaction.OPERATOR
    made.close()


def test_a_bucket_that_does_not_exist_is_no_miss(server: SeaweedServer) -> None:
    """Writes fail, whatever a read says of it."""
    made = open_engine(
        server.url.replace("s3://pages", "s3://missing"), credential=server.credential
    )
    with pytest.raises(RemoteError):
        made.set_control(b"kvr/{a}", b"x", LIFE_MS, soon(), only_if_absent=True)
    made.close()


def test_the_rule_of_the_bucket_is_asked_for(engine: RemoteEngine) -> None:
    """Nobody can read it here, so the finding says what it has to be."""
    (told,) = engine.findings(soon())
    assert told.kind is FindingKind.UNKNOWN
    assert "kv1/" in told.remedy
