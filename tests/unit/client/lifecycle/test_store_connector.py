"""The connector, which keeps the client's session and opens its namespaces."""

import resource
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from threading import Thread

import pytest
from google.rpc import status_pb2

from kvstore.v1 import attach_pb2, prefix_cache_pb2, store_pb2
from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity, errors
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from kvstore_client.values.namespace_key import NamespaceKey
from wire.scripted_session import (
    ACKNOWLEDGED,
    BOUND,
    CAPABILITIES,
    GRANTED,
    KEY,
    RENEWED,
    REVOKED,
    WELCOME,
)
from wire.scripted_store import ScriptedAttach, ScriptedCalls, refusal

OPENED = store_pb2.OpenNamespaceResponse(namespace_id=b"space", arena_id=1)
OTHER = NamespaceKey(NamespaceIdentity(b"other"), KEY.layout)


@pytest.fixture
def client(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Client]:
    """Provides a client that is attached once to scripted sockets."""
    peer = ScriptedAttach(
        runtime_dir.attach_socket, [(WELCOME, ())], [(BOUND, ())], [(ACKNOWLEDGED, ())]
    )
    scripted.answer("GrantLease", GRANTED)
    scripted.answer("GetCapabilities", CAPABILITIES)
    scripted.answer("RevokeLease", REVOKED)
    config = ClientConfig(
        call_timeout=30, connect_timeout=30, first_backoff=0.01, longest_backoff=0.01
    )
    with Client(runtime_dir.path, config) as client:
        assert client.wait_connected(30)
        yield client
    peer.close()


def opened(scripted: ScriptedCalls) -> list[bytes]:
    """Returns the models of the namespaces that were opened, in order."""
    requests = scripted.requests.get("OpenNamespace", [])
    return [store_pb2.OpenNamespaceRequest.FromString(r).identity.model_digest for r in requests]


def test_a_namespace_is_asked_for_once(scripted: ScriptedCalls, client: Client) -> None:
    """A namespace that several parts of a program want is opened once."""
    scripted.answer("OpenNamespace", OPENED)
    one, same = client.namespace(*KEY), client.namespace(*KEY)
    assert one.wait_open(30)
    assert same.wait_open(30)
    assert opened(scripted) == [b"model"]
    assert (one.identity, one.layout) == KEY


def test_a_refusal_that_passes_is_tried_again(scripted: ScriptedCalls, client: Client) -> None:
    """A namespace that is refused for now is tried again, and does not delay the others."""
    scripted.answer("OpenNamespace", refusal("POOL_EXHAUSTED"), OPENED, OPENED)
    first, second = client.namespace(*KEY), client.namespace(*OTHER)
    assert first.wait_open(30)
    assert second.wait_open(30)
    assert sorted(opened(scripted)) == [b"model", b"model", b"other"]


def test_a_refusal_that_stays_is_not_repeated(scripted: ScriptedCalls, client: Client) -> None:
    """A namespace of the wrong layout keeps its reason and is not tried again. Others open."""
    scripted.answer("OpenNamespace", refusal("LAYOUT_MISMATCH", field="page_tokens"), OPENED)
    wrong = client.namespace(*KEY)
    assert wait_until(lambda: isinstance(wrong.failure, errors.LayoutMismatch))
    assert client.namespace(*OTHER).wait_open(30)
    failure = wrong.match(b"").failure
    assert isinstance(failure, errors.LayoutMismatch)
    assert failure.metadata == {"field": "page_tokens"}
    assert opened(scripted) == [b"model", b"other"]


def test_a_namespace_that_is_forgotten_is_closed(scripted: ScriptedCalls, client: Client) -> None:
    """A forgotten namespace is closed and its requests miss. It can be opened again later."""
    scripted.answer("OpenNamespace", OPENED, OPENED, OPENED)
    namespace = client.namespace(*KEY)
    salted = namespace.salted(b"grain")
    assert salted.identity == NamespaceIdentity(b"model", salt=b"grain")
    for each in (namespace, salted):
        assert each.wait_open(30)
    for _ in range(2):
        salted.forget()
    assert isinstance(salted.match(b"").failure, errors.StoreUnavailable)
    assert namespace.failure is None
    assert len(opened(scripted)) == 2
    assert namespace.salted(b"grain").wait_open(30)
    assert len(opened(scripted)) == 3


def reserve(namespace: Namespace) -> errors.StoreError | None:
    """Returns the error of a reserve."""
    with pytest.raises(errors.StoreError) as raised:
        namespace.reserve(start_page=0, page_count=1)
    return raised.value


def peek(namespace: Namespace) -> errors.StoreError | None:
    """Peeks, and returns the error that a peek does not report."""
    assert namespace.peek(b"") == 0
    return errors.NamespaceNotFound("gone")


@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("PeekPrefix", peek),
        ("MatchPrefix", lambda namespace: namespace.match(b"").failure),
        ("AcquirePrefix", lambda namespace: namespace.acquire(b"", total_page_count=1).failure),
        ("ReservePages", reserve),
    ],
)
def test_a_namespace_that_was_deleted_is_opened_anew(
    scripted: ScriptedCalls,
    client: Client,
    method: str,
    ask: Callable[[Namespace], errors.StoreError | None],
) -> None:
    """A request to a deleted namespace misses and has it opened again."""
    scripted.answer("OpenNamespace", OPENED, OPENED)
    namespace = client.namespace(*KEY)
    assert namespace.wait_open(30)
    scripted.answer(method, refusal("NAMESPACE_NOT_FOUND"))
    assert isinstance(ask(namespace), errors.NamespaceNotFound)
    assert wait_until(lambda: len(opened(scripted)) == 2)
    assert namespace.wait_open(30)


@pytest.mark.parametrize(
    ("speed", "stated"),
    [(0.0, 0), (nan, 0), (0.2, 1), (1234.5, 1234), (1e12, (1 << 32) - 1), (inf, (1 << 32) - 1)],
)
def test_an_engine_s_speed_goes_with_each_match(
    scripted: ScriptedCalls, client: Client, speed: float, stated: int
) -> None:
    """The prefill speed is sent as whole tokens/s, at least 1 if it is known, and 0 if not."""
    scripted.answer("OpenNamespace", OPENED)
    scripted.answer("MatchPrefix", prefix_cache_pb2.MatchPrefixResponse())
    scripted.answer("AcquirePrefix", prefix_cache_pb2.AcquirePrefixResponse())
    namespace = client.namespace(*KEY)
    assert namespace.wait_open(30)
    assert namespace.prefill_tokens_per_second == 0
    namespace.prefill_tokens_per_second = speed
    assert namespace.match(b"").failure is None
    assert namespace.acquire(b"", total_page_count=1).failure is None
    match = prefix_cache_pb2.MatchPrefixRequest.FromString(scripted.requests["MatchPrefix"][0])
    acquire = prefix_cache_pb2.AcquirePrefixRequest.FromString(
        scripted.requests["AcquirePrefix"][0]
    )
    assert match.prefill_tokens_per_second == acquire.prefill_tokens_per_second == stated


def test_an_answer_with_unmapped_pages_is_a_miss(scripted: ScriptedCalls, client: Client) -> None:
    """A match with unmapped pages becomes a miss, and its pin is released."""
    scripted.answer("OpenNamespace", OPENED)
    scripted.answer("ReleasePins", prefix_cache_pb2.ReleasePinsResponse())
    response = prefix_cache_pb2.MatchPrefixResponse()
    response.match.runs.add(extent_id=8, slot_indexes=[0])
    scripted.answer("MatchPrefix", response)
    namespace = client.namespace(*KEY)
    assert namespace.wait_open(30)
    match = namespace.match(b"")
    assert isinstance(match.failure, errors.StoreUnavailable)
    assert match.pages == []
    assert client.flush(30)
    assert len(scripted.requests["ReleasePins"]) == 1
    with pytest.raises(KeyError):
        namespace.extent(8)


def test_a_store_that_is_not_there_was_tried(tmp_path: Path) -> None:
    """A client without a store notes its first attempt, so waiting for it ends at once."""
    client = Client(tmp_path)
    assert not client.tried
    with client:
        with client._connector.monitor:
            assert client._connector.monitor.wait_for(lambda: client.tried, 30)
        assert not client.connected


def test_a_store_that_refuses_this_process_says_why(runtime_dir: RuntimeDir) -> None:
    """A process that is refused at the attach socket has that reason in each failed request."""
    status = status_pb2.Status.FromString(refusal("PEER_REFUSED", why="test"))
    peer = ScriptedAttach(runtime_dir.attach_socket, [(attach_pb2.ServerFrame(refused=status), ())])
    # The next attempt, which nobody answers, goes on until the client is closed.
    client = Client(runtime_dir.path, ClientConfig(connect_timeout=30))
    namespace = client.namespace(*KEY)
    assert isinstance(namespace.match(b"").failure, errors.StoreUnavailable)
    client.start()
    assert wait_until(lambda: isinstance(namespace.match(b"").failure, errors.PeerRefused))
    with pytest.raises(errors.StoreError):
        client.admin.stats()
    client.close()
    peer.close()


def test_a_process_without_descriptors_attaches_later(
    runtime_dir: RuntimeDir,
) -> None:
    """The connector tries again after an attempt fails for lack of descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = Client(runtime_dir.path, ClientConfig(first_backoff=0.01, longest_backoff=0.01))
    namespace = client.namespace(*KEY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        client.start()
        assert wait_until(lambda: "cannot attach" in str(namespace.match(b"").failure))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert wait_until(lambda: "no store answers" in str(namespace.match(b"").failure))
    client.close()


def test_a_client_can_be_closed_from_many_threads(tmp_path: Path) -> None:
    """A client may be closed by several threads at once, and started again without effect."""
    client = Client(tmp_path)
    client.start()
    client.start()
    threads = [Thread(target=client.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    client.start()
    assert not client.connected
    assert (client.store_epoch, client.flush(0)) == (None, True)


def test_a_store_that_says_when_to_come_is_not_asked_before(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits as long as the store asks before it requests a lease again."""
    peer = ScriptedAttach(runtime_dir.attach_socket, [(WELCOME, ())])
    scripted.answer("GrantLease", refusal("STORE_DRAINING", retry_after_s=1000))
    scripted.answer("RevokeLease", REVOKED)
    waits: list[float] = []
    client = Client(runtime_dir.path, ClientConfig(connect_timeout=30, first_backoff=0.001))
    monkeypatch.setattr(client._connector, "_pause", waits.append)
    with client:
        namespace = client.namespace(*KEY)
        assert wait_until(lambda: isinstance(namespace.failure, errors.StoreDraining))
        assert wait_until(lambda: bool(waits))
    assert waits[0] == 1000
    assert "RevokeLease" in scripted.requests
    peer.close()


@pytest.mark.parametrize(("ttl", "longest"), [(0.5, 0.25), (10.0, 1.0)])
def test_a_store_that_is_back_is_seen_within_half_a_lease(
    runtime_dir: RuntimeDir, ttl: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits between attempts grow to the configured maximum, and to at most half of the TTL."""
    waits: list[float] = []
    client = Client(runtime_dir.path, ClientConfig(ttl=ttl, first_backoff=0.2))
    connector = client._connector

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 8:
            connector._closing = True

    monkeypatch.setattr(connector, "_pause", pause)
    with client:
        assert wait_until(lambda: len(waits) == 8)
    assert longest / 2 <= max(waits) <= longest


@pytest.mark.parametrize(("reason", "ends"), [("PEER_REFUSED", True), ("QUOTA_EXCEEDED", False)])
def test_a_server_that_refuses_the_process_ends_its_session(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, reason: str, *, ends: bool
) -> None:
    """A refusal that stays ends a suspended session. Too many connections are tried again."""
    outliving = attach_pb2.ServerFrame()
    outliving.CopyFrom(WELCOME)
    outliving.welcome.outlives = True
    peer = ScriptedAttach(runtime_dir.attach_socket, [(outliving, ())], [(BOUND, ())])
    scripted.answer("GrantLease", GRANTED)
    scripted.answer("GetCapabilities", CAPABILITIES, CAPABILITIES)
    scripted.answer("RenewLease", RENEWED, RENEWED)
    scripted.answer("RevokeLease", REVOKED)
    refused = attach_pb2.ServerFrame(refused=status_pb2.Status.FromString(refusal(reason)))
    config = ClientConfig(call_timeout=30, first_backoff=0.01, close_timeout=0.1)
    with Client(runtime_dir.path, config) as client:
        assert client.wait_connected(30)
        session = client._connector.session
        assert session is not None
        runtime_dir.attach_socket.unlink()
        refusing = ScriptedAttach(runtime_dir.attach_socket, [(refused, ())])
        peer.hang_up()
        assert wait_until(lambda: len(refusing.frames) == 1)
        if ends:
            assert wait_until(lambda: isinstance(session.ended, errors.PeerRefused))
        else:
            runtime_dir.attach_socket.unlink()
            next_one = ScriptedAttach(runtime_dir.attach_socket, [(outliving, ())], [(BOUND, ())])
            assert wait_until(lambda: session.usable)
            next_one.close()
    for each in (peer, refusing):
        each.close()


def test_a_session_that_ended_says_why_at_once(client: Client) -> None:
    """Callers hear the reason before the connector's thread has noted it."""
    connector = client._connector
    session = connector.require_session()
    with connector.monitor:
        session.end(errors.LeaseExpired("the lease's time is over"))
        with pytest.raises(errors.LeaseExpired):
            client.share_lease()
