"""Settings of a real server that cost hits or break promises are found by name."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest

from kvstore.remote.errors import DeadlinePassed
from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from remote.valkey_server import ValkeyServer, valkey_server

GENEROUS = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """Returns a server with the documented settings, whose user may read them."""
    with TemporaryDirectory(prefix="kv-") as name, valkey_server(Path(name)) as running:
        running.admin("ACL", "SETUSER", "kvstore", "+info", "+config|get")
        yield running


@pytest.fixture
def engine(server: ValkeyServer) -> Iterator[ValkeyEngine]:
    """Returns an engine on the server."""
    made = server.engine()
    yield made
    made.close()


def found(engine: ValkeyEngine) -> list[EngineFinding]:
    """Returns the findings."""
    return engine.findings(monotonic() + GENEROUS)


def test_the_documented_settings_have_no_findings(engine: ValkeyEngine) -> None:
    """Nothing is left to do."""
    assert found(engine) == []


@pytest.mark.parametrize(
    ("setting", "value", "kind"),
    [
        ("maxmemory", "0", FindingKind.HITS),
        ("maxmemory-policy", "allkeys-lru", FindingKind.PROMISE),
        ("maxmemory-policy", "noeviction", FindingKind.HITS),
        ("maxmemory-policy", "volatile-lru", FindingKind.HITS),
        ("maxmemory-samples", "5", FindingKind.HITS),
        ("save", "3600 1", FindingKind.PROMISE),
        ("appendonly", "yes", FindingKind.PROMISE),
    ],
)
def test_a_setting_that_costs_something_is_found(
    server: ValkeyServer, engine: ValkeyEngine, setting: str, value: str, kind: FindingKind
) -> None:
    """With its value, what it costs and the way out; and it is gone once it is right."""
    _, before = server.admin("CONFIG", "GET", setting)  # type: ignore[misc]  # a list of two
    server.admin("CONFIG", "SET", setting, value)
    (told,) = found(engine)
    server.admin("CONFIG", "SET", setting, before)
    assert (told.kind, told.setting, told.value) == (kind, setting, value)
    assert told.reason.endswith(".")
    assert setting in told.remedy
    assert found(engine) == []


def test_threads_that_spin_are_found() -> None:
    """Only a start can set them."""
    with TemporaryDirectory(prefix="kv-") as name, valkey_server(Path(name), "io-threads 2") as own:
        own.admin("ACL", "SETUSER", "kvstore", "+info", "+config|get")
        engine = own.engine()
        assert [each.setting for each in found(engine)] == ["io-threads"]
        engine.close()


def test_what_is_forbidden_is_unknown(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """Each command says which right it needs, and what the other one tells is told."""
    server.admin("ACL", "SETUSER", "kvstore", "-config|get")
    server.admin("CONFIG", "SET", "maxmemory", "0")
    told = found(engine)
    server.admin("ACL", "SETUSER", "kvstore", "-info")
    nothing = found(engine)
    server.admin("CONFIG", "SET", "maxmemory", "256mb")
    server.admin("ACL", "SETUSER", "kvstore", "+info", "+config|get")
    assert [each.setting for each in told] == ["maxmemory", "CONFIG"]
    assert [(each.setting, each.kind) for each in nothing] == [
        ("INFO", FindingKind.UNKNOWN),
        ("CONFIG", FindingKind.UNKNOWN),
    ]
    assert "+config|get" in told[1].remedy


def test_a_server_that_does_not_answer_is_no_finding(
    server: ValkeyServer, engine: ValkeyEngine
) -> None:
    """It is an error of the call, as of any other."""
    engine.ping(monotonic() + GENEROUS)
    server.process.stop()
    with pytest.raises(DeadlinePassed):
        engine.findings(monotonic() + 0.1)
    server.process.resume()
    assert found(engine) == []
