"""One node of a cluster: its breaker opens for itself, and closes for a value that passes."""

from collections.abc import Iterator

import pytest

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.errors import DeadlinePassed, EngineCut, EngineUnreachable, RemoteError
from kvstore.remote.liveness.breaker import MOST_FAILURES
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.cluster.cluster_node import PROBE_BYTES, ClusterNode
from kvstore.remote.valkey.resp import RespConnection
from remote.narrow_server import NarrowServer, narrow_server

GENEROUS = 60.0
# Long enough for a busy machine to send a megabyte, and short enough to wait for.
PROBE_SECONDS = 2.0
USUAL = 1.0
LATER = 1e12


@pytest.fixture
def server() -> Iterator[NarrowServer]:
    """Provides a server."""
    with narrow_server() as made:
        yield made


@pytest.fixture
def returns() -> list[str]:
    """Provides the list to which each return of the node is added."""
    return []


@pytest.fixture
def node(server: NarrowServer, returns: list[str]) -> Iterator[ClusterNode]:
    """Provides a node on the server."""
    pool = ConnectionPool[RespConnection](server.connect, size=1, connect_seconds=GENEROUS)
    address = EngineAddress(None, "host", 7000, is_tls=False)
    made = ClusterNode(
        address, pool, usual_seconds=USUAL, returned=lambda: returns.append("returned")
    )
    yield made
    made.close()


def fail(node: ClusterNode, error: RemoteError, waited: float = USUAL) -> None:
    """Lets as many calls fail as open a breaker, one after another."""
    for number in range(MOST_FAILURES):
        node.fail(error, LATER + number, waited)


def canary() -> bytes:
    """Returns a name."""
    return b"kv1/{00}/canary"


def test_a_node_that_fails_is_away_until_a_large_value_passes(
    node: ClusterNode, server: NarrowServer, returns: list[str]
) -> None:
    """An answer to a PING does not end it (F29)."""
    node.probe(GENEROUS, canary)
    assert server.commands.count(b"SET") == 0, "a node that works gets a value"
    server.most_bytes = PROBE_BYTES - 1
    fail(node, EngineCut("cut"))
    assert (node.is_away, node.answers, node.needs_probe) == (True, False, True)
    with pytest.raises(EngineUnreachable, match="cut"):
        node.take(LATER)
    with pytest.raises(DeadlinePassed):
        node.probe(PROBE_SECONDS, canary)
    assert node.is_away
    assert returns == []
    server.most_bytes = PROBE_BYTES
    node.probe(GENEROUS, canary)
    assert (node.is_away, node.answers, node.needs_probe) == (False, True, False)
    assert returns == ["returned"]


def test_a_node_that_refuses_writes_and_answers_is_there(
    node: ClusterNode, server: NarrowServer
) -> None:
    """A replica, or a full node, may be read from."""
    fail(node, EngineCut("cut"))
    server.is_read_only = True
    node.probe(GENEROUS, canary)
    assert not node.is_away


def test_a_node_without_a_slot_answers_a_ping(node: ClusterNode, server: NarrowServer) -> None:
    """No name is its own, so no value can pass."""
    fail(node, EngineCut("cut"))
    node.probe(GENEROUS, lambda: None)
    assert not node.is_away
    assert b"SET" not in server.commands


def test_a_call_with_little_time_says_nothing_of_a_node(node: ClusterNode) -> None:
    """It would have been late at any node."""
    fail(node, DeadlinePassed("late"), USUAL / 10)
    assert (node.is_away, node.answers) == (False, True)
    fail(node, DeadlinePassed("late"), USUAL)
    assert node.is_away


def test_an_answer_between_failures_counts(node: ClusterNode, returns: list[str]) -> None:
    """Few failures of many calls are none, and each return is one."""
    for number in range(100):
        node.fail(EngineCut("cut"), LATER + number, USUAL)
        assert not node.answers
        for _ in range(MOST_FAILURES):
            node.succeed()
    assert not node.is_away
    assert len(returns) == 100


def test_probes_of_a_node_that_stays_away_are_apart(node: ClusterNode) -> None:
    """The next one is not due at once."""
    assert node.is_due()
    assert not node.is_due()
