"""Groups of Valkey servers that lose one: its names fail alone, and a replica takes over."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest

from kvstore.remote.engine import ReadResult
from kvstore.remote.engine_url import open_engine
from kvstore.remote.errors import (
    ClusterDown,
    CredentialRefused,
    DeadlinePassed,
    EngineUnreachable,
    NodeAway,
    Reaction,
    RemoteError,
    ReplicasMissing,
    TryAgain,
)
from kvstore.remote.liveness.breaker import MOST_FAILURES
from kvstore.remote.valkey.cluster.cluster_engine import ClusterEngine
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from remote.valkey_groups import (
    Sentinel,
    ValkeyCluster,
    ValkeySentinel,
    valkey_cluster,
    valkey_sentinel,
    wait_until,
)
from remote.valkey_server import ValkeyServer, valkey_server

pytestmark = pytest.mark.engines

GENEROUS = 60.0
LIFE_MS = 600_000


def soon() -> float:
    """Returns a deadline that no healthy server misses."""
    return monotonic() + GENEROUS


@pytest.fixture
def folder() -> Iterator[Path]:
    """Returns a folder with a path that is short enough for sockets."""
    with TemporaryDirectory(prefix="kv-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[ValkeyCluster]:
    """Returns three primaries with a replica each."""
    with TemporaryDirectory(prefix="kv-") as name, valkey_cluster(Path(name)) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster: ValkeyCluster) -> ValkeyCluster:
    """Returns the cluster, whole again. A failover may have changed its primaries."""
    shared_cluster.restore()
    return shared_cluster


@pytest.fixture
def engine(cluster: ValkeyCluster) -> Iterator[ClusterEngine]:
    """Returns an engine on the cluster."""
    made = cluster.engine()
    yield made
    made.close()


def fresh_names(count: int) -> list[bytes]:
    """Returns names that lie on all nodes."""
    return [b"kv1/{%032x}/%d" % (random.SystemRandom().getrandbits(128), at) for at in range(count)]


def put(engine: ClusterEngine | ValkeyEngine, names: Sequence[bytes]) -> list[RemoteError | None]:
    """Writes each name as its own value."""
    values = [memoryview(name) for name in names]
    return list(engine.put_many(names, values, [LIFE_MS] * len(names), soon()))


def get(
    engine: ClusterEngine | ValkeyEngine, names: Sequence[bytes], deadline: float | None = None
) -> list[ReadResult]:
    """Reads what ``put`` wrote, and compares what was read."""
    into = [bytearray(len(name)) for name in names]
    results = list(engine.get_many(names, [memoryview(each) for each in into], deadline or soon()))
    for name, buffer, result in zip(names, into, results, strict=True):
        assert result is not ReadResult.READ or bytes(buffer) == name
    return results


def failure(call: Callable[[], object]) -> RemoteError | None:
    """Returns the error of a call."""
    try:
        call()
    except RemoteError as error:
        return error
    return None


def works(call: Callable[[], object]) -> bool:
    """Returns whether a call raises no error; one that it raises has to call for waiting."""
    error = failure(call)
    assert error is None or error.reaction in {Reaction.AWAY, Reaction.NODE}
    return error is None


def split(
    cluster: ValkeyCluster, names: Sequence[bytes], lost: ValkeyServer
) -> tuple[list[bytes], list[bytes]]:
    """Returns the names that a node has, and the others."""
    theirs = [name for name in names if cluster.primary_of(name) is lost]
    others = [name for name in names if name not in theirs]
    assert theirs
    assert others
    return theirs, others


def test_a_dead_primary_costs_its_own_names_alone(folder: Path) -> None:
    """Without a replica they stay away, and all calls serve the other nodes' names."""
    with valkey_cluster(folder, with_replicas=False) as cluster:
        engine = cluster.engine()
        names = fresh_names(60)
        assert not any(put(engine, names))
        dead = cluster.primary_of(names[0])
        theirs, others = split(cluster, names, dead)
        dead.kill()
        expected = [name in others for name in names]
        assert engine.exists_many(names, soon()) == expected
        assert get(engine, names) == [
            ReadResult.READ if there else ReadResult.AWAY for there in expected
        ]
        told = put(engine, names)
        assert [each is None for each in told] == expected
        assert {type(each) for each in told if each is not None} == {NodeAway}
        assert not any(engine.exists_many(theirs, soon()))
        assert set(get(engine, theirs)) == {ReadResult.AWAY}
        assert {type(each) for each in put(engine, theirs)} == {NodeAway}
        alone: list[Callable[[], object]] = [
            lambda: engine.control(theirs[0], soon()),
            lambda: engine.delete_many(names, soon()),
            lambda: engine.refresh_many(names, [LIFE_MS] * len(names), soon()),
        ]
        for call in alone:
            with pytest.raises(NodeAway):
                call()
        assert not any(engine.exists_many(others, soon()))
        engine.ping(soon())
        assert engine.nodes()[:2] == (3, (f"127.0.0.1:{dead.port}",))
        changes = engine.nodes().changes
        dead.start()
        wait_until(lambda: works(lambda: engine.control(theirs[0], soon())), "the node")
        assert engine.nodes()[:2] == (3, ())
        assert engine.nodes().changes > changes
        wait_until(lambda: not any(put(engine, names)), "writes to all nodes")
        engine.close()


def test_a_hung_primary_costs_few_deadlines(cluster: ValkeyCluster, engine: ClusterEngine) -> None:
    """Others' names are told at the deadline at first, and at once after some of them."""
    names = fresh_names(60)
    assert not any(put(engine, names))
    hung = cluster.primary_of(names[0])
    theirs, others = split(cluster, names, hung)
    hung.process.stop()
    for _ in range(MOST_FAILURES):
        found = engine.exists_many(names, monotonic() + 1.0)
        assert [name for name, there in zip(names, found, strict=True) if there] == others
    start = monotonic()
    for _ in range(5):
        engine.exists_many(names, start + GENEROUS)
        get(engine, names, start + GENEROUS)
    assert monotonic() - start < GENEROUS / 2
    wait_until(lambda: all(engine.exists_many(theirs, monotonic() + 1)), "a replica")
    hung.process.resume()
    cluster.wait_until_whole()
    assert engine.exists_many(others, soon()) == [True] * len(others)


def test_a_replica_takes_over(cluster: ValkeyCluster, engine: ClusterEngine) -> None:
    """Names and control values that the replica had are found again, by the same engine."""
    names = fresh_names(60)
    assert not any(put(engine, names))
    control = b"kvr/" + names[0].removeprefix(b"kv1/")
    made = cluster.engine(replicas=1)
    assert made.set_control(control, b"one", LIFE_MS, soon(), only_if_absent=True)
    made.close()
    dead = cluster.primary_of(names[0])
    wait_until(lambda: dead.admin("WAIT", 1, 1000) == 1, "a replica that has all")
    dead.kill()
    wait_until(lambda: works(lambda: engine.control(control, soon())), "a new primary")
    assert engine.control(control, soon()) == b"one"
    wait_until(lambda: all(engine.exists_many(names, soon())), "all names")
    assert get(engine, names) == [ReadResult.READ] * 60
    assert not any(put(engine, names))
    dead.start()
    cluster.wait_until_whole()
    assert get(engine, names) == [ReadResult.READ] * 60


def test_slots_that_move_are_followed(cluster: ValkeyCluster, engine: ClusterEngine) -> None:
    """A call that meets a moved slot asks its new node, and tells what it cannot."""
    names = [b"kv1/{moving}/%d" % at for at in range(8)]
    assert not any(put(engine, names))
    old = cluster.primary_of(names[0])
    new = next(node for node in cluster.primaries() if node is not old)
    cluster.begin_move(names[0], old, new)
    cluster.move(names[:4], old, new)
    # Half of the names moved: those are asked for elsewhere, which only the nodes can tell.
    assert engine.exists_many(names, soon()) == [True] * 8
    assert get(engine, names) == [ReadResult.READ] * 8
    assert put(engine, names) == [None] * 8
    engine.refresh_many(names, [2 * LIFE_MS] * 8, soon())
    # It is on neither node, so the old one asks for it at the new one.
    control = b"kvr/{moving}"
    assert engine.set_control(control, b"x", LIFE_MS, soon(), only_if_absent=True)
    assert engine.control(control, soon()) == b"x"
    cluster.move(names[4:], old, new)
    cluster.finish_move(names[0], new)
    # The engine's map is of before.
    assert get(engine, names) == [ReadResult.READ] * 8
    assert put(engine, names) == [None] * 8
    assert engine.exists_many(names, soon()) == [True] * 8
    assert engine.control(control, soon()) == b"x"
    engine.delete_many(names, soon())
    assert not any(engine.exists_many(names, soon()))


def test_a_moved_slot_is_followed_by_each_call(cluster: ValkeyCluster) -> None:
    """By the first call of an engine that has not heard of it, which loses no name."""
    names = [b"kv1/{gone}/%d" % at for at in range(6)]
    others = fresh_names(30)
    mixed = [each for pair in zip(others, names * 5, strict=True) for each in pair][:12]
    calls: list[Callable[[ClusterEngine], object]] = [
        lambda engine: get(engine, mixed),
        lambda engine: [ReadResult.READ if each is None else each for each in put(engine, mixed)],
        lambda engine: [
            ReadResult.READ if each else each for each in engine.exists_many(mixed, soon())
        ],
    ]
    for call in calls:
        engine = cluster.engine()
        assert not any(put(engine, [*names, *others]))
        old = cluster.primary_of(names[0])
        new = next(node for node in cluster.primaries() if node is not old)
        cluster.begin_move(names[0], old, new)
        cluster.move(names, old, new)
        cluster.finish_move(names[0], new)
        assert call(engine) == [ReadResult.READ] * len(mixed)
        engine.close()


def test_without_the_right_to_ask_a_name_on_its_way_is_a_miss(
    cluster: ValkeyCluster, engine: ClusterEngine
) -> None:
    """No engine is away for that, and no operator is called."""
    names = [b"kv1/{halfway}/%d" % at for at in range(4)]
    assert not any(put(engine, names))
    for node in cluster.nodes:
        node.admin("ACL", "SETUSER", "kvstore", "-asking")
    old = cluster.primary_of(names[0])
    new = next(node for node in cluster.primaries() if node is not old)
    cluster.begin_move(names[0], old, new)
    cluster.move(names[:2], old, new)
    assert engine.exists_many(names, soon()) == [False, False, True, True]
    assert get(engine, names) == [ReadResult.AWAY] * 2 + [ReadResult.READ] * 2
    assert [type(each) for each in put(engine, names)] == [TryAgain] * 2 + [type(None)] * 2
    with pytest.raises(TryAgain):
        engine.control(names[0], soon())
    cluster.move(names[2:], old, new)
    cluster.finish_move(names[0], new)
    assert get(engine, names) == [ReadResult.READ] * 4


def test_control_values_wait_for_replicas(cluster: ValkeyCluster) -> None:
    """Too few of them are an error, though the value is written."""
    engine = cluster.engine(replicas=1)
    name = b"kvr/" + fresh_names(1)[0].removeprefix(b"kv1/")
    assert engine.set_control(name, b"one", LIFE_MS, soon(), only_if_absent=False)
    replica = cluster.replica_of(cluster.primary_of(name))
    replica.kill()
    with pytest.raises(ReplicasMissing):
        engine.set_control(name, b"two", LIFE_MS, monotonic() + 1.0, only_if_absent=False)
    assert engine.control(name, soon()) == b"two"
    assert not engine.set_control(name, b"three", LIFE_MS, soon(), only_if_absent=True)
    engine.close()


def test_calls_wait_for_no_connection_of_each_other(
    cluster: ValkeyCluster,
) -> None:
    """Threads that use all nodes over one connection each never block one another for long."""
    engine = cluster.engine(connections=1)
    names = fresh_names(30)
    assert not any(put(engine, names))
    right = []

    def work() -> None:
        generator = random.Random(threading.get_ident())
        for _ in range(30):
            mixed = generator.sample(names, len(names))
            right.append(get(engine, mixed) == [ReadResult.READ] * len(names))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 180
    engine.close()


def test_a_cluster_that_nobody_answers_for_is_unreachable() -> None:
    """At once, and with the reason."""
    engine = open_engine("valkey+cluster://127.0.0.1:1,127.0.0.1:2")
    for call in (
        lambda: engine.ping(soon()),
        lambda: engine.exists_many([b"kv1/x"], soon()),
        lambda: list(engine.get_many([b"kv1/x"], [memoryview(bytearray(1))], soon())),
        lambda: engine.time_ms(soon()),
    ):
        with pytest.raises(EngineUnreachable, match="refused"):
            call()
    engine.close()


def test_a_server_that_is_no_cluster_is_named(folder: Path) -> None:
    """Its own words say what is wrong."""
    with valkey_server(folder) as server:
        engine = open_engine(
            f"valkey+cluster://127.0.0.1:{server.port}", credential=server.credential
        )
        with pytest.raises(RemoteError, match="cluster support disabled"):
            engine.ping(soon())
        engine.close()


def test_a_wrong_password_is_the_operators(cluster: ValkeyCluster) -> None:
    """Also where several nodes refuse it."""
    cluster.nodes[0].write_credential("wrong")
    engine = cluster.engine()
    for call in (lambda: engine.ping(soon()), lambda: engine.exists_many([b"kv1/x"], soon())):
        with pytest.raises(CredentialRefused):
            call()
    engine.close()


def test_no_thread_is_left(cluster: ValkeyCluster) -> None:
    """A closed engine leaves none behind, also after errors."""
    before = threading.active_count()
    for _ in range(3):
        engine = cluster.engine()
        assert not any(put(engine, fresh_names(20)))
        with pytest.raises(DeadlinePassed):
            engine.exists_many([b"kv1/x"], monotonic() - 1)
        engine.close()
    assert threading.active_count() == before


def test_findings_name_each_node(cluster: ValkeyCluster, engine: ClusterEngine) -> None:
    """Without the rights nobody can check; with them, what is wrong is told where."""
    told = engine.findings(soon())
    assert {each.value for each in told} == {"forbidden"}
    for node in cluster.nodes:
        node.admin("ACL", "SETUSER", "kvstore", "+info", "+config|get")
    assert engine.findings(soon()) == []
    wrong = cluster.primaries()[0]
    wrong.admin("CONFIG", "SET", "maxmemory-samples", "5")
    wrong.admin("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    assert {each.setting for each in engine.findings(soon())} == {
        f"maxmemory-samples at 127.0.0.1:{wrong.port}",
        f"cluster-require-full-coverage at 127.0.0.1:{wrong.port}",
    }


@pytest.fixture
def group(folder: Path) -> Iterator[ValkeySentinel]:
    """Returns a primary, a replica and a Sentinel."""
    with valkey_sentinel(folder) as running:
        yield running


def test_the_sentinels_lead_to_the_new_primary(group: ValkeySentinel) -> None:
    """While nobody is one, calls fail and name no operator; afterwards they go on."""
    engine = group.engine()
    names = fresh_names(10)
    assert not any(put(engine, names))
    waiting = group.engine(replicas=1)
    assert waiting.set_control(b"kvr/{x}", b"one", LIFE_MS, soon(), only_if_absent=True)
    killed = group.fail_over()
    wait_until(lambda: works(lambda: engine.ping(soon())), "the new primary")
    assert engine.control(b"kvr/{x}", soon()) == b"one"
    assert get(engine, names) == [ReadResult.READ] * 10
    assert not any(put(engine, names))
    with pytest.raises(ReplicasMissing):
        waiting.set_control(b"kvr/{x}", b"two", LIFE_MS, monotonic() + 1, only_if_absent=False)
    killed.start()
    group.wait_until_replicated()
    assert waiting.set_control(b"kvr/{x}", b"three", LIFE_MS, soon(), only_if_absent=False)
    engine.close()
    waiting.close()


def test_a_primary_that_was_demoted_is_left(group: ValkeySentinel) -> None:
    """A failover without a death: writes reach the new primary, and no read the old one."""
    engine = group.engine()
    names = fresh_names(4)
    assert not any(put(engine, names))
    old = group.primary()
    group.sentinels[0].admin("SENTINEL", "FAILOVER", "pages")
    wait_until(lambda: group.primary() is not old, "another primary")
    wait_until(lambda: works(lambda: put(engine, names)) and not any(put(engine, names)), "writes")
    group.wait_until_replicated()
    new = group.primary()
    reads = new.admin("INFO", "commandstats")
    assert get(engine, names) == [ReadResult.READ] * 4
    assert new.admin("INFO", "commandstats") != reads
    engine.close()


def test_a_sentinel_that_is_behind_leads_to_no_replica(group: ValkeySentinel, folder: Path) -> None:
    """A server that calls itself a replica is refused, whatever a Sentinel says."""
    replica = next(each for each in group.servers if each is not group.primary())
    late = Sentinel(folder / "late", replica, name="late", down_after_ms=3_600_000)
    engine = open_engine(
        f"valkey+sentinel://127.0.0.1:{late.port}/late",
        credential=group.credential,
        connect_seconds=5.0,
    )
    for call in (
        lambda: engine.ping(soon()),
        lambda: engine.exists_many([b"kv1/x"], soon()),
    ):
        with pytest.raises(ClusterDown, match="no primary"):
            call()
    engine.close()
    late.process.kill()


def test_the_first_sentinel_may_be_dead(folder: Path) -> None:
    """The next one is asked. An unknown name and a dead group have their errors."""
    with valkey_sentinel(folder, sentinels=3) as group:
        group.sentinels[0].process.kill()
        engine = group.engine()
        engine.ping(soon())
        engine.close()
        unknown = open_engine(
            group.url.replace("/pages", "/other"), credential=group.credential, connect_seconds=5.0
        )
        with pytest.raises(ClusterDown, match="other"):
            unknown.ping(soon())
        unknown.close()
    dead = open_engine(group.url)
    with pytest.raises(EngineUnreachable):
        dead.ping(soon())
    dead.close()
