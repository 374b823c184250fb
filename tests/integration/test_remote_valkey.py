"""Valkey that is killed, stopped, full, locked or slow: errors of the right class, in time."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import (
    ClusterDown,
    CommandForbidden,
    CredentialRefused,
    DeadlinePassed,
    EngineBusy,
    EngineCut,
    EngineFull,
    EngineReadOnly,
    EngineUnreachable,
    Reaction,
    RemoteError,
    ReplicasMissing,
    WrongNode,
)
from kvstore.remote.secret.names import RemoteNames
from kvstore.remote.secret.sealing import SEAL_BYTES, PageSealer
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from processes.proxy import GOOD, SILENT, Line, SocketProxy
from remote.remote_pages import OTHER_SECRET, SECRET, leaks, written_page
from remote.valkey_server import PASSWORD, ValkeyServer, free_port, valkey_server

GENEROUS = 60.0
LIFE_MS = 600_000
MIB = 1 << 20


def soon() -> float:
    """Returns a deadline that no healthy server misses."""
    return monotonic() + GENEROUS


@pytest.fixture
def folder() -> Iterator[Path]:
    """Returns a folder with a path that is short enough for a socket."""
    with TemporaryDirectory(prefix="kv-") as name:
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[ValkeyServer]:
    """Returns a server for one test."""
    with valkey_server(folder) as running:
        yield running


@pytest.fixture
def engine(server: ValkeyServer) -> Iterator[ValkeyEngine]:
    """Returns an engine on the unix socket."""
    made = server.engine()
    yield made
    made.close()


@pytest.fixture
def line(server: ValkeyServer, folder: Path) -> Iterator[SocketProxy]:
    """Returns a line to the server, which a test makes bad."""
    made = SocketProxy(folder / "line.sock", server.socket)
    yield made
    made.close()


@pytest.fixture
def far(server: ValkeyServer, folder: Path, line: SocketProxy) -> Iterator[ValkeyEngine]:
    """Returns an engine behind the line, with one connection."""
    del line
    made = ValkeyEngine(
        EngineAddress(str(folder / "line.sock")),
        credential=server.credential,
        connections=1,
        connect_seconds=5.0,
    )
    made.ping(soon())
    yield made
    made.close()


def put(engine: ValkeyEngine, count: int = 1, size: int = 100) -> list[bytes]:
    """Writes values under new names; returns the names."""
    names = [
        b"kv1/{%032x}/%d" % (random.SystemRandom().getrandbits(128), at) for at in range(count)
    ]
    values = [memoryview(b"%d" % at * size)[:size] for at in range(count)]
    assert not any(engine.put_many(names, values, [LIFE_MS] * count, soon()))
    return names


def buffers(count: int, size: int = 100) -> list[memoryview]:
    """Returns buffers for values."""
    return [memoryview(bytearray(size)) for _ in range(count)]


def first_error(engine: ValkeyEngine) -> RemoteError | None:
    """Returns the error that a write is answered by, whether raised or told."""
    try:
        (told,) = engine.put_many([b"kv1/{a}/b"], [memoryview(b"x")], [LIFE_MS], soon())
    except RemoteError as error:
        return error
    return told


@pytest.mark.parametrize(
    "command",
    [
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "maxmemory"),
        ("INFO",),
        ("GET", "elsewhere"),
        ("SET", "elsewhere", "x"),
        ("GETEX", "kv1/x", "PX", "1"),
        ("EVAL", "return 1", "0"),
        ("SUBSCRIBE", "x"),
    ],
    ids=lambda command: command[0],
)
def test_the_documented_rights_are_few(server: ValkeyServer, command: tuple[str, ...]) -> None:
    """A thief of kvstore's password lists nothing, and reaches no other names."""
    valkey = pytest.importorskip("valkey")
    with (
        valkey.Valkey(
            unix_socket_path=str(server.socket), username="kvstore", password=PASSWORD
        ) as client,
        pytest.raises(valkey.exceptions.NoPermissionError),
    ):
        client.execute_command(*command)


def test_a_name_beyond_the_rights_is_forbidden(engine: ValkeyEngine) -> None:
    """The operator has to act, and the connection stays good."""
    with pytest.raises(CommandForbidden) as raised:
        engine.exists_many([b"elsewhere"], soon())
    assert raised.value.reaction is Reaction.OPERATOR
    put(engine)


def test_a_rotated_password_needs_no_restart(server: ValkeyServer) -> None:
    """A wrong one is refused by name, and the file is read again for the next attempt."""
    server.write_credential("wrong")
    made = server.engine()
    with pytest.raises(CredentialRefused):
        made.ping(soon())
    server.write_credential(PASSWORD)
    made.ping(soon())
    put(made)
    made.close()


def test_a_password_that_the_server_does_not_know_is_refused(server: ValkeyServer) -> None:
    """A server that asks for none refuses any, and the operator has to take the file away."""
    server.admin("ACL", "SETUSER", "default", "on", "nopass")
    server.credential.write_text("only a password\n")
    made = server.engine()
    with pytest.raises(CredentialRefused, match="without any password"):
        made.ping(soon())
    made.close()


@pytest.mark.parametrize("content", ["", "one\ntwo\nthree\n"])
def test_a_credential_of_another_form_is_refused(server: ValkeyServer, content: str) -> None:
    """The error is the operator's, and no attempt is made with a part of the file."""
    server.credential.write_text(content)
    made = server.engine()
    with pytest.raises(CredentialRefused, match="lines"):
        made.ping(soon())
    made.close()


def test_a_credential_that_others_can_read_is_refused(server: ValkeyServer) -> None:
    """The password may be known, so it is not used."""
    server.credential.chmod(0o644)
    made = server.engine()
    with pytest.raises(CredentialRefused, match="mode"):
        made.ping(soon())
    made.close()


def test_without_a_credential_the_server_asks_for_one(server: ValkeyServer) -> None:
    """The class is that of a wrong one."""
    made = ValkeyEngine(server.unix, connect_seconds=5.0)
    with pytest.raises(CredentialRefused):
        made.ping(soon())
    made.close()


def test_the_first_write_after_a_restart_is_not_lost(
    server: ValkeyServer, engine: ValkeyEngine
) -> None:
    """Connections that ended meanwhile are not used, whatever the number of them."""
    names = put(engine, 3)
    server.kill()
    server.start()
    assert engine.exists_many(names, soon()) == [False] * 3
    put(engine)


def test_a_dead_server_is_told_at_once(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """Nobody waits for a deadline, and the engine comes back by itself."""
    names = put(engine)
    server.kill()
    start = monotonic()
    for _ in range(20):
        with pytest.raises((EngineUnreachable, EngineCut)):
            engine.exists_many(names, soon())
    assert monotonic() - start < GENEROUS / 2
    server.start()
    engine.ping(soon())
    put(engine)


def test_a_stopped_server_costs_the_deadline(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """Each call ends in time; after the stop the same engine works."""
    names = put(engine, 4)
    server.send(signal.SIGSTOP)
    for call in (
        lambda deadline: engine.exists_many(names, deadline),
        lambda deadline: list(engine.get_many(names, buffers(4), deadline)),
        lambda deadline: list(engine.put_many(names, buffers(4), [LIFE_MS] * 4, deadline)),
        lambda deadline: engine.delete_many(names, deadline),
        engine.time_ms,
        engine.ping,
    ):
        start = monotonic()
        with pytest.raises((DeadlinePassed, EngineUnreachable)):
            call(start + 0.05)
        assert monotonic() - start < GENEROUS / 2
    server.send(signal.SIGCONT)
    engine.ping(soon())
    assert engine.exists_many(names, soon()) == [True] * 4


def test_dripping_bytes_do_not_extend_the_deadline(far: ValkeyEngine, line: SocketProxy) -> None:
    """The deadline is that of the call, not of each wait in it."""
    names = put(far, 4, MIB)
    line.line = Line(delay=0.02, piece_bytes=1024)
    start = monotonic()
    with pytest.raises(DeadlinePassed):
        list(far.get_many(names, buffers(4, MIB), start + 0.3))
    assert monotonic() - start < 5.0
    line.line = GOOD


def test_a_silent_line_ends_a_call_at_its_deadline(far: ValkeyEngine, line: SocketProxy) -> None:
    """A reply that comes late is taken for no other call's answer."""
    names = put(far, 2)
    line.line = SILENT
    with pytest.raises(DeadlinePassed):
        far.exists_many(names, monotonic() + 0.1)
    line.line = GOOD
    results = buffers(2)
    assert list(far.get_many(names, results, soon())) == [ReadResult.READ] * 2
    assert [bytes(each) for each in results] == [b"0" * 100, b"1" * 100]


def test_values_before_a_cut_count(far: ValkeyEngine, line: SocketProxy) -> None:
    """A connection that ends in the sixth value leaves the five before it."""
    names = put(far, 10, MIB)
    line.line = Line(cut_after=5 * MIB + MIB // 2)
    results = buffers(10, MIB)
    reads = far.get_many(names, results, soon())
    for whole in range(5):
        assert next(reads) is ReadResult.READ
        assert results[whole] == b"%d" % whole * MIB
    with pytest.raises(EngineCut):
        next(reads)
    line.line = GOOD
    assert far.exists_many(names, soon()) == [True] * 10


def test_a_hanging_resolver_holds_no_request(server: ValkeyServer) -> None:
    """Requests miss in time, no thread is added for any of them, and the engine recovers."""
    released = threading.Event()

    def resolve(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        released.wait(GENEROUS)
        return [(2, 1, 6, "", (host, port))]

    made = ValkeyEngine(
        server.tcp, credential=server.credential, connect_seconds=0.05, resolve=resolve
    )
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(EngineUnreachable):
            made.exists_many([b"kv1/x"], soon())
    assert threading.active_count() == before
    released.set()
    end = soon()
    while not _is_up(made):
        assert monotonic() < end
    made.close()


def _is_up(engine: ValkeyEngine) -> bool:
    try:
        engine.ping(soon())
    except EngineUnreachable:
        return False
    return True


def test_a_resolver_that_fails_is_unreachable(server: ValkeyServer) -> None:
    """An unknown name is no error of another class."""

    def resolve(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        raise OSError(f"no such name: {host}:{port}")

    made = ValkeyEngine(server.tcp, resolve=resolve)
    with pytest.raises(EngineUnreachable, match="no such name"):
        made.ping(soon())
    made.close()


def test_closing_ends_a_call_under_way(far: ValkeyEngine, line: SocketProxy) -> None:
    """A thread that waits for the server returns at once."""
    line.line = SILENT
    raised: list[RemoteError] = []

    def wait() -> None:
        try:
            far.exists_many([b"kv1/x"], soon())
        except RemoteError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    end = soon()
    while not far._pool._used:
        assert monotonic() < end
    far.close()
    thread.join(GENEROUS)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_a_full_server_refuses_single_values(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """The refusals are told in their places, and reads go on."""
    names = put(engine, 2)
    server.admin("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.admin("CONFIG", "SET", "maxmemory", "1")
    told = list(engine.put_many([b"kv1/{a}/1"] * 3, buffers(3), [LIFE_MS] * 3, soon()))
    assert [type(each) for each in told] == [EngineFull] * 3
    assert engine.exists_many(names, soon()) == [True, True]


def test_an_overfilled_server_keeps_the_values_without_expiry(
    server: ValkeyServer, engine: ValkeyEngine
) -> None:
    """With the documented policy no write fails, and no control value is evicted."""
    server.admin("CONFIG", "SET", "maxmemory", "32mb")
    server.admin("SET", "kvr/{control}", "1")
    for _ in range(16):
        put(engine, 4, MIB)
    assert engine.exists_many([b"kvr/{control}"], soon()) == [True]


def test_a_replica_refuses_writes_only(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """A server that was demoted still answers reads."""
    names = put(engine)
    server.admin("REPLICAOF", "127.0.0.1", "1")
    assert type(first_error(engine)) is EngineReadOnly
    assert engine.exists_many(names, soon()) == [True]
    server.admin("CONFIG", "SET", "replica-serve-stale-data", "no")
    with pytest.raises(ClusterDown):
        engine.exists_many(names, soon())


def test_missing_replicas_refuse_writes_only(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """Reads and looks need no right of a write, so they go on."""
    names = put(engine)
    server.admin("CONFIG", "SET", "min-replicas-to-write", "1")
    assert type(first_error(engine)) is ReplicasMissing
    assert list(engine.get_many(names, buffers(1), soon())) == [ReadResult.READ]


def test_a_server_busy_with_a_script_is_away(server: ValkeyServer, engine: ValkeyEngine) -> None:
    """The engine comes back once the script ends."""
    put(engine)
    server.admin("CONFIG", "SET", "busy-reply-threshold", "1")
    script = threading.Thread(target=_run_for_ever, args=(server,))
    script.start()
    end = soon()
    while type(first_error(engine)) is not EngineBusy:
        assert monotonic() < end
    server.admin("SCRIPT", "KILL")
    script.join()
    put(engine)


def _run_for_ever(server: ValkeyServer) -> None:
    valkey = pytest.importorskip("valkey")
    with pytest.raises(valkey.exceptions.ResponseError):
        server.admin("EVAL", "while true do end", 0)


def test_nodes_of_a_cluster_name_their_errors(folder: Path) -> None:
    """A cluster that is down, and a key of another node, are told apart."""
    cluster = ("cluster-enabled yes", f"cluster-port {free_port()}")
    with valkey_server(folder, *cluster, "cluster-require-full-coverage no") as node:
        made = node.engine()
        assert type(first_error(made)) is ClusterDown
        node.admin("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        end = soon()
        while first_error(made) is not None:
            assert monotonic() < end
        with pytest.raises(WrongNode):
            made.exists_many([b"kv1/{a}/x", b"kv1/{b}/x"], soon())
        made.close()


def test_a_server_with_too_many_clients_is_unreachable(
    server: ValkeyServer, engine: ValkeyEngine
) -> None:
    """A new connection that is refused by words counts as none."""
    put(engine)
    server.admin("CONFIG", "SET", "maxclients", "1")
    other = server.engine()
    with pytest.raises((EngineUnreachable, EngineCut)):
        other.ping(soon())
    other.close()


def test_a_host_with_a_wrong_clock_expires_nothing(
    engine: ValkeyEngine, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two days behind or ahead, values live as long as asked, by the server's clock."""
    real = time.time
    for days in (-2, 2):
        monkeypatch.setattr(time, "time", lambda days=days: real() + days * 86_400)
        monkeypatch.setattr(time, "time_ns", lambda days=days: int((real() + days * 86_400) * 1e9))
        names = put(engine, 3)
        lives = [server.admin("PTTL", name) for name in names]
        assert all(LIFE_MS - GENEROUS * 1000 < life <= LIFE_MS + 5 for life in lives)  # type: ignore[operator]


def test_a_child_expires_before_its_parent(engine: ValkeyEngine, server: ValkeyServer) -> None:
    """One call's lives keep their order to the millisecond, however long the writes take."""
    count = 50
    names = [b"kv1/{order}/%d" % at for at in range(count)]
    values = [memoryview(bytes(100_000))] * count
    lives = [LIFE_MS - at for at in range(count)]
    assert not any(engine.put_many(names, values, lives, soon()))
    times = [server.admin("PEXPIRETIME", name) for name in names]
    assert times == [times[0] - at for at in range(count)]  # type: ignore[operator]


def test_a_read_changes_no_expiry(engine: ValkeyEngine, server: ValkeyServer) -> None:
    """A read needs no right to write, so a replica or a full server can answer it."""
    (name,) = put(engine)
    before = server.admin("PEXPIRETIME", name)
    list(engine.get_many([name], buffers(1), soon()))
    engine.exists_many([name], soon())
    assert server.admin("PEXPIRETIME", name) == before


def test_a_dump_of_the_server_shows_nothing(engine: ValkeyEngine, server: ValkeyServer) -> None:
    """No eight bytes of tokens, digests, revision, checksum, content or secret are in it."""
    names, sealed = RemoteNames(SECRET), []
    sealer = PageSealer(SECRET)
    pages = [written_page(seed) for seed in range(20)]
    for each in pages:
        value = memoryview(bytearray(each.page.page_bytes + SEAL_BYTES))
        sealer.seal(each.page, [memoryview(each.content)], xxh3_64_intdigest(each.content), value)
        sealed.append(value)
    written = engine.put_many(
        [names.page(each.page) for each in pages], sealed, [LIFE_MS] * 20, soon()
    )
    assert not any(written)
    dump = server.everything()
    assert len(dump) > 20 * 4096
    hidden = [SECRET]
    for each in pages:
        checksum = xxh3_64_intdigest(each.content).to_bytes(8, "little")
        hidden += [each.tokens, each.content, checksum, checksum[::-1]]
        hidden += [each.page.namespace_digest, each.page.page_digest, each.page.revision]
    assert leaks(dump, *hidden) == []
    shown = names.page(pages[0].page)
    assert leaks(dump, shown) == [shown]


def test_clusters_with_other_secrets_never_meet(engine: ValkeyEngine) -> None:
    """The same page under another secret has a name that nobody wrote."""
    page = written_page(1).page
    name = RemoteNames(SECRET).page(page)
    assert not any(engine.put_many([name], [memoryview(b"x")], [LIFE_MS], soon()))
    assert engine.exists_many([RemoteNames(OTHER_SECRET).page(page)], soon()) == [False]


def test_no_thread_and_no_descriptor_is_left(server: ValkeyServer) -> None:
    """A closed engine leaves nothing behind, after errors too."""
    descriptors = Path("/proc/self/fd")
    threads, before = threading.active_count(), len(list(descriptors.iterdir()))
    for _ in range(5):
        made = server.engine()
        put(made)
        with pytest.raises(DeadlinePassed):
            made.exists_many([b"kv1/x"], monotonic() - 1)
        made.close()
    assert threading.active_count() == threads
    assert len(list(descriptors.iterdir())) == before
