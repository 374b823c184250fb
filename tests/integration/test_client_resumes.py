"""A client whose store outlives its server: suspended, resumed, and ended."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from kvstore_client import Client, ClientConfig, Namespace, StoreStep, errors
from kvstore_client.testing import wait_until
from pages.stamped_pages import (
    LIMIT,
    TOKENS,
    hits,
    holds_tokens,
    memfd_mappings,
    nothing_held,
    open_client,
    page_bytes,
    prompt,
    write_and_insert,
)
from processes.page_worker import page_process
from wire.succeeded_store import SucceededStore

OTHER = prompt(2)


@pytest.fixture
def succeeded(tmp_path: Path) -> Iterator[SucceededStore]:
    """Provides a store with a server."""
    store = SucceededStore(tmp_path)
    store.serve()
    yield store
    store.close()


def addresses(namespace: Namespace) -> dict[int, int]:
    """Returns the address of each extent of a namespace, by its id."""
    views = namespace.extents
    return {key: ctypes.addressof(ctypes.c_char.from_buffer(views[key])) for key in views}


def suspended(client: Client) -> bool:
    """Returns whether a client's session has lost its connection and not ended."""
    session = client._connector.session
    return session is not None and session.ended is None and session.suspended is not None


def succeed(store: SucceededStore, *clients: Client) -> None:
    """Replaces the server, and waits until the clients are resumed by the next one."""
    sessions = [each._connector.session for each in clients]
    counts = [each._connection_count for each in sessions if each is not None]
    store.succeed()
    for session, count in zip(sessions, counts, strict=True):
        assert session is not None
        assert wait_until(lambda s=session, c=count: s._connection_count > c and s.usable)


def own_mappings(succeeded: SucceededStore) -> int:
    """Returns the number of extents that the store itself has mapped in this process."""
    return sum(len(each.extents) for each in succeeded.cache.arenas.values())


def thread_names() -> list[str]:
    """Returns the names of the clients' threads, and of the store's of the same names."""
    names = {"kvstore-attach", "kvstore-connector", "kvstore-lease", "kvstore-release"}
    return sorted(each.name for each in threading.enumerate() if each.name in names)


def opened(
    succeeded: SucceededStore,
    *,
    call_timeout: float = LIMIT,
    close_timeout: float = 2.0,
    ttl: float = 10.0,
    hot_lane: bool = True,
) -> tuple[Client, Namespace]:
    """Returns a client with an open namespace."""
    config = ClientConfig(
        call_timeout=call_timeout, close_timeout=close_timeout, ttl=ttl, hot_lane=hot_lane
    )
    return open_client(succeeded.runtime_dir, config)


@pytest.mark.parametrize("hot_lane", [False, True], ids=["grpc", "lanes"])
def test_what_is_held_outlives_five_servers(succeeded: SucceededStore, *, hot_lane: bool) -> None:
    """Pins, open reservations and mappings stay through five servers, and are used afterwards."""
    client, namespace = opened(succeeded, hot_lane=hot_lane)
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    reservation = namespace.reserve(start_page=0, page_count=4)
    before = addresses(namespace), namespace.session_number, client.store_epoch
    pages = list(reservation.pages)
    for number, page in enumerate(pages):
        succeed(succeeded, client)
        namespace.page(page)[:] = page_bytes(OTHER, number)
        assert hits(namespace)
    succeed(succeeded, client)
    assert (addresses(namespace), namespace.session_number, client.store_epoch) == before
    assert match.current
    assert holds_tokens(namespace, TOKENS, match.pages)
    assert reservation.insert(OTHER[:16], position=0).pages == pages
    reservation.abort()
    match.release()
    with namespace.match(OTHER) as found:
        assert holds_tokens(namespace, OTHER, found.pages)
    assert client.flush(LIMIT)
    assert wait_until(lambda: nothing_held(client))
    [lease] = client.admin.leases()
    assert [each.mapped_extent_count for each in lease.processes] == [1]
    client.close()


def test_a_suspended_client_misses_and_keeps_all(succeeded: SucceededStore) -> None:
    """Without a server every request misses at once, and held pages stay readable."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS) as match:
        epoch = client.store_epoch
        succeeded.end()
        assert wait_until(lambda: suspended(client))
        assert not client.connected
        failure = namespace.match(TOKENS).failure
        assert type(failure) is errors.StoreUnavailable
        assert "until the store is back" in str(failure)
        with pytest.raises(errors.StoreUnavailable):
            namespace.reserve(start_page=0, page_count=1)
        assert (client.store_epoch, namespace.failure) == (epoch, None)
        assert holds_tokens(namespace, TOKENS, match.pages)
        succeeded.serve()
        assert client.wait_connected(LIMIT)
        assert hits(namespace)
    client.close()


def test_releases_wait_for_the_next_server(succeeded: SucceededStore) -> None:
    """Pins and reservations that end while no server runs are given back to the next one."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    reservation = namespace.reserve(start_page=0, page_count=2)
    succeeded.end()
    assert wait_until(lambda: suspended(client))
    match.release()
    reservation.abort()
    assert not client.flush(0)
    succeeded.serve()
    assert client.wait_connected(LIMIT)
    assert client.flush(LIMIT)
    assert nothing_held(client)
    client.close()


def losing_the_answer(
    succeeded: SucceededStore, monkeypatch: pytest.MonkeyPatch, *, takes_effect: bool
) -> list[Thread]:
    """Lets the next insert end the server without an answer. Returns the thread that does it."""
    insert: Callable[..., Any] = succeeded.store.insert
    threads: list[Thread] = []

    def lost(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the store's
        monkeypatch.setattr(succeeded.store, "insert", insert)
        answer = insert(*arguments, **named) if takes_effect else None
        cut = Event()
        threads.append(Thread(target=succeeded.succeed, args=(cut,), daemon=True))
        threads[0].start()
        assert cut.wait(LIMIT)
        return answer

    monkeypatch.setattr(succeeded.store, "insert", lost)
    return threads


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("in_step", [False, True], ids=["call", "step"])
def test_an_insert_without_an_answer_is_repeated(
    succeeded: SucceededStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    takes_effect: bool,
    in_step: bool,
) -> None:
    """An insert that a server did not answer is sent to the next one, and succeeds once."""
    client, namespace = opened(succeeded, hot_lane=False)
    with namespace.acquire(TOKENS, total_page_count=4) as acquired:
        assert acquired.reservation is not None
        for number, page in enumerate(acquired.reservation.pages):
            namespace.page(page)[:] = page_bytes(TOKENS, number)
        threads = losing_the_answer(succeeded, monkeypatch, takes_effect=takes_effect)
        if in_step:
            step = StoreStep(namespace)
            outcome = step.insert(acquired.reservation, TOKENS[:16], position=0)
            matched = step.match(prompt(9))
            step.run()
            inserted = outcome.result()
            assert matched.result().failure is None
        else:
            inserted = acquired.reservation.insert(TOKENS[:16], position=0)
        assert (len(inserted.pages), inserted.published_page_count) == (4, 4)
        assert inserted.pages == acquired.reservation.pages
    [thread] = threads
    thread.join(LIMIT)
    assert hits(namespace)
    assert client.flush(LIMIT)
    assert nothing_held(client)
    client.close()


def test_an_insert_is_not_repeated_beyond_its_budget(
    succeeded: SucceededStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An insert whose time is over before the next server comes fails, and nothing leaks."""
    client, namespace = opened(succeeded, hot_lane=False, call_timeout=0.5)
    monkeypatch.setattr(succeeded, "serve", lambda: None)
    with namespace.acquire(TOKENS, total_page_count=4) as acquired:
        assert acquired.reservation is not None
        threads = losing_the_answer(succeeded, monkeypatch, takes_effect=False)
        with pytest.raises(errors.StoreUnavailable):
            acquired.reservation.insert(TOKENS[:16], position=0)
    [thread] = threads
    thread.join(LIMIT)
    monkeypatch.undo()
    succeeded.serve()
    assert client.wait_connected(LIMIT)
    assert client.flush(LIMIT)
    assert nothing_held(client)
    client.close()


def test_a_store_of_another_epoch_ends_the_session(succeeded: SucceededStore) -> None:
    """A server without the memory ends the session, and a new one begins after the last hold."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    epoch = client.store_epoch
    with namespace.match(TOKENS) as match:
        succeeded.end()
        assert wait_until(lambda: suspended(client))
        succeeded.forget()
        succeeded.serve()
        assert wait_until(lambda: client.store_epoch is None)
        assert holds_tokens(namespace, TOKENS, match.pages)
    assert namespace.wait_open(LIMIT)
    assert client.store_epoch not in (None, epoch)
    assert not hits(namespace)
    client.close()


def test_a_lease_that_ended_ends_the_session(succeeded: SucceededStore) -> None:
    """A server that does not know the lease any more ends the session, and another one begins."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    first = client.share_lease()
    succeeded.end()
    assert wait_until(lambda: suspended(client))
    [process_id] = succeeded.store.attached_process_ids()
    succeeded.store.process_died(process_id)
    succeeded._processes.forget(process_id)
    succeeded.serve()
    assert wait_until(lambda: client.connected and client.share_lease() != first)
    assert namespace.wait_open(LIMIT)
    assert hits(namespace)
    client.close()


def test_a_session_without_a_server_ends_with_its_lease(succeeded: SucceededStore) -> None:
    """A session that is suspended for longer than its TTL ends, and the next server is used."""
    client, namespace = opened(succeeded, ttl=2.0)
    first = client.share_lease()
    succeeded.end()
    assert wait_until(lambda: client.store_epoch is None)
    with pytest.raises(errors.LeaseExpired):
        client.share_lease()
    succeeded.serve()
    assert wait_until(lambda: client.connected and client.share_lease() != first)
    assert namespace.wait_open(LIMIT)
    client.close()


def test_a_server_whose_memory_ends_with_it_ends_sessions(succeeded: SucceededStore) -> None:
    """Without ``outlives`` in Welcome the end of the connection ends the session, as ever."""
    succeeded.end()
    succeeded.serve(outlives=False)
    client, namespace = opened(succeeded)
    first = client.share_lease()
    succeeded.end()
    assert wait_until(lambda: client.store_epoch is None)
    succeeded.serve(outlives=False)
    assert wait_until(lambda: client.connected and client.share_lease() != first)
    assert namespace.wait_open(LIMIT)
    client.close()


def closes(client: Client) -> bool:
    """Closes a client; returns whether that ended in time."""
    thread = Thread(target=client.close, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return not thread.is_alive()


def test_a_suspended_client_closes(succeeded: SucceededStore) -> None:
    """A client without a server closes in its time. Its memory goes unless it is held."""
    client, namespace = opened(succeeded, close_timeout=0.2)
    write_and_insert(namespace, TOKENS)
    holding, other = opened(succeeded, close_timeout=0.2)
    match = other.match(TOKENS)
    succeeded.end()
    assert wait_until(lambda: suspended(client) and suspended(holding))
    before = memfd_mappings()
    mapped = len(namespace.extents)
    assert closes(client)
    assert memfd_mappings() == before - mapped
    assert closes(holding)
    assert holds_tokens(other, TOKENS, match.pages)
    match.release()


def test_a_namespace_is_opened_after_the_resumption(succeeded: SucceededStore) -> None:
    """A namespace that is wanted while no server runs is opened by the next one."""
    client, namespace = opened(succeeded)
    succeeded.end()
    assert wait_until(lambda: suspended(client))
    salted = namespace.salted(b"grain")
    assert not salted.wait_open(0)
    succeeded.serve()
    assert salted.wait_open(LIMIT)
    client.close()


def test_an_extent_that_retires_between_two_servers_is_unmapped(
    succeeded: SucceededStore,
) -> None:
    """The next server asks for it, and the client answers, also if a view delays that."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    [extent_id] = namespace.extents
    view = namespace.extent(extent_id)
    [arena] = succeeded.cache.arenas.values()
    succeeded.end()
    assert wait_until(lambda: suspended(client))
    succeeded.cache.retire_extent(arena.arena_id, extent_id)
    succeeded.serve()

    def is_unmapped() -> bool:
        # As the store's growth does, which did not retire this extent and knows nothing of it: the
        # last hold in it may go back after the client is attached again.
        succeeded.store.announcer.announce()
        return extent_id not in namespace.extents

    assert wait_until(is_unmapped)
    mappings = succeeded.cache.state.mappings
    assert mappings.pids(extent_id)
    succeed(succeeded, client)
    del view
    assert wait_until(lambda: not mappings.pids(extent_id))
    assert client.connected
    client.close()


def test_each_process_of_a_lease_resumes_by_itself(succeeded: SucceededStore) -> None:
    """The owner of a lease and two ranks that joined it are attached to the next server again."""
    owner = page_process(succeeded.runtime_dir, "owner")
    with owner:
        join = owner.ask("share_lease")
        ranks = [page_process(succeeded.runtime_dir, f"rank {n}", join=join) for n in range(2)]
        with ranks[0], ranks[1]:
            owner.ask("write", TOKENS)
            assert owner.ask("match", "held", TOKENS) == 16
            pages = owner.ask("matched_pages", "held")
            succeeded.succeed()
            table = succeeded.cache.table
            everybody = {each.pid for each in (owner, *ranks)}
            assert wait_until(
                lambda: {p.pid for p in table.processes.values() if p.connected} == everybody
            )
            count = own_mappings(succeeded)
            assert wait_until(
                lambda: {len(each.mapped) for each in table.processes.values()} == {count}
            )
            written = owner.ask("check", "held")
            assert [each.ask("stamps_at", TOKENS, pages) for each in ranks] == [written] * 2
            owner.ask("release", "held")


def test_no_thread_is_left_by_resumptions(succeeded: SucceededStore) -> None:
    """A client has as many threads after three servers as after one."""
    client, namespace = opened(succeeded)
    write_and_insert(namespace, TOKENS)
    assert hits(namespace)
    names = thread_names()
    for _ in range(3):
        succeed(succeeded, client)
    assert hits(namespace)
    assert wait_until(lambda: thread_names() == names), (thread_names(), names)
    client.close()
