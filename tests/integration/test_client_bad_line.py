"""A client with a bad line to its store: the cost of a request, and the recovery."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore_client import Client, ClientConfig, Namespace, connect_admin, errors
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    hits,
    page_bytes,
    write_and_insert,
)
from processes.proxy import GOOD, SILENT, Line, Proxy, proxied
from stores.slow_calls import slow_calls

# Seconds. What is asserted are shares of it.
CALL_TIMEOUT = 2.0
LONG = list(range(2000, 2033))
LONG_PAGES = 8


@pytest.fixture(scope="module")
def store() -> Iterator[RunningStore]:
    """Provides a store with the tokens' pages, and checks at the end that it holds nothing."""
    with running_store(*SMALL_STORE) as running:
        with Client(running.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            namespace = client.namespace(IDENTITY, LAYOUT)
            assert namespace.wait_open(LIMIT), namespace.failure
            write_and_insert(namespace, TOKENS)
        yield running


@pytest.fixture
def proxy(store: RunningStore) -> Iterator[Proxy]:
    """Provides a good line to the store, and checks at the end that nothing is held."""
    with proxied(store.runtime_dir) as made:
        yield made
    assert wait_until(lambda: nothing_left(store))


def nothing_left(store: RunningStore) -> bool:
    """Returns whether there are no leases or holds, and only free and cached slots."""
    with connect_admin(store.runtime_dir) as admin:
        stats = admin.stats()
    (arena,) = stats.arenas
    settled = arena.free_slot_count + arena.cached_slot_count == arena.slot_count
    return settled and (len(stats.leases), stats.pin_count, stats.reservation_count) == (0, 0, 0)


@contextmanager
def a_client(
    folder: Path, *, wait: bool = True, hot_lane: bool = False
) -> Iterator[tuple[Client, Namespace]]:
    """Opens a client with short timeouts, and its namespace."""
    config = ClientConfig(
        call_timeout=CALL_TIMEOUT, first_backoff=0.01, longest_backoff=0.1, hot_lane=hot_lane
    )
    with Client(folder, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert not wait or namespace.wait_open(LIMIT), namespace.failure
        yield client, namespace


def test_a_slow_store_costs_a_request_its_budget_and_no_more(proxy: Proxy) -> None:
    """All calls of a request together take the time of one budget if every answer is slow."""
    with a_client(proxy.runtime_dir) as (_, namespace):
        proxy.calls.line = Line(delay=0.3 * CALL_TIMEOUT)
        budget = namespace.new_budget()
        inserted = 0
        with namespace.acquire(LONG, total_page_count=LONG_PAGES, budget=budget) as acquired:
            reservation = acquired.reservation
            for page in range(LONG_PAGES if reservation else 0):
                assert reservation is not None
                namespace.page(reservation.pages[page])[:] = page_bytes(LONG, page)
                part = slice(4 * page, 4 * page + 4)
                try:
                    reservation.insert(LONG[part], position=part.start)
                except errors.StoreUnavailable:
                    break
                inserted += 1
        assert inserted < LONG_PAGES
        assert CALL_TIMEOUT / 2 < budget.spent_seconds < 2 * CALL_TIMEOUT
        proxy.calls.line = GOOD
        assert wait_until(lambda: hits(namespace))


def test_a_silent_store_costs_one_request_its_deadline(proxy: Proxy) -> None:
    """A silent store costs one request its deadline. Later ones miss at once until it answers."""
    with a_client(proxy.runtime_dir) as (client, namespace):
        proxy.calls.line = SILENT
        assert isinstance(namespace.match(TOKENS).failure, errors.StoreTimedOut)
        budget = namespace.new_budget()
        failures = [namespace.match(TOKENS, budget=budget).failure for _ in range(100)]
        assert {type(each) for each in failures} == {errors.StoreUnavailable}
        assert budget.spent_seconds < CALL_TIMEOUT
        assert not client.connected
        proxy.calls.line = GOOD
        assert wait_until(lambda: hits(namespace))


def test_answers_that_are_cut_off_are_undone(proxy: Proxy) -> None:
    """Wherever an answer is cut, the request misses or hits, and holds nothing afterwards."""
    with a_client(proxy.runtime_dir) as (_, namespace):
        for count in (1, 40, 300):
            assert wait_until(lambda: hits(namespace))
            proxy.calls.line = Line(cut_after=count)
            acquired = namespace.acquire(TOKENS, total_page_count=5)
            assert acquired.match.token_count in {0, len(TOKENS) - 1}
            acquired.release()
            proxy.calls.line = GOOD
        assert wait_until(lambda: hits(namespace))


def test_a_line_that_breaks_again_and_again_is_not_tried_by_requests(proxy: Proxy) -> None:
    """Calls that fail at once are tried a few times, and then only probes are sent."""
    with a_client(proxy.runtime_dir) as (client, namespace):
        proxy.calls.line = Line(cut_after=0)
        assert wait_until(lambda: namespace.match(TOKENS).failure is not None)
        assert wait_until(lambda: "not asked" in str(namespace.match(TOKENS).failure))
        assert client.store_epoch is not None
        proxy.calls.line = GOOD
        assert wait_until(lambda: hits(namespace))


def test_bytes_that_drip_are_as_good(proxy: Proxy) -> None:
    """Bytes in tiny pieces on both sockets still pass descriptors and whole answers."""
    proxy.set(Line(piece_bytes=7))
    with a_client(proxy.runtime_dir) as (_, namespace):
        assert wait_until(lambda: hits(namespace))


def memfds() -> int:
    """Counts this process's memfd descriptors, which clients close after mapping."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            count += str(each.readlink()).startswith("/memfd:")
        except OSError:  # closed meanwhile
            continue
    return count


def test_attaching_is_tried_until_the_line_holds(proxy: Proxy) -> None:
    """The client attaches again wherever the connection is cut, and leaks no descriptor."""
    others = memfds()
    with a_client(proxy.runtime_dir, wait=False) as (_, namespace):
        for count in (0, 2, 40, 75, 100):
            proxy.attach.line = Line(cut_after=count)
            proxy.attach.cut()
            before = proxy.attach.connections
            assert wait_until(lambda before=before: proxy.attach.connections >= before + 2)
            assert namespace.match(TOKENS).failure is not None
        proxy.attach.line = GOOD
        assert wait_until(lambda: hits(namespace))
        assert wait_until(lambda: memfds() <= others)


def test_nobody_waits_for_an_attach_socket_that_says_nothing(proxy: Proxy) -> None:
    """Requests miss at once while attaching hangs, and attaching continues when the line does."""
    proxy.attach.line = SILENT
    with a_client(proxy.runtime_dir, wait=False) as (client, namespace):
        assert wait_until(lambda: proxy.attach.connections > 0)
        budget = namespace.new_budget()
        assert all(namespace.match(TOKENS, budget=budget).failure for _ in range(100))
        assert budget.spent_seconds == 0
        assert not client.connected
        proxy.attach.line = GOOD
        assert wait_until(lambda: hits(namespace))


def test_a_store_that_answers_renewals_alone_costs_few_requests_their_deadline(
    store: RunningStore,
) -> None:
    """Requests to a store that only answers renewals and peeks are tried ever more rarely."""
    with slow_calls(store.runtime_dir) as (folder, calls), a_client(folder) as (client, namespace):
        assert wait_until(lambda: hits(namespace))
        calls.hold("MatchPrefix")
        before = calls.counts["MatchPrefix"]
        failures = []
        while calls.counts["MatchPrefix"] < before + 3:
            assert client.wait_connected(LIMIT) or failures
            failures += [namespace.match(TOKENS).failure for _ in range(50)]
        paid = sum(isinstance(each, errors.StoreTimedOut) for each in failures)
        assert all(failures)
        assert 3 <= paid <= len(failures) / 20
        assert calls.counts["PeekPrefix"] >= 2
        calls.let_go()
        assert wait_until(lambda: hits(namespace))
    assert wait_until(lambda: nothing_left(store))
