"""The client's promises to a worker, against a real store."""

import threading
from collections.abc import Iterator

import pytest

from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    PagedContent,
    PageLayout,
    connect_admin,
    errors,
)
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    holds_tokens,
    memfd_mappings,
    nothing_held,
    open_client,
    page_bytes,
    write_and_insert,
)

pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture(params=[True, False], ids=["lane", "grpc"])
def opened(
    fresh_store: RunningStore, request: pytest.FixtureRequest
) -> Iterator[tuple[Client, Namespace]]:
    """Provides an attached client and its namespace, over lanes and over gRPC."""
    config = ClientConfig(call_timeout=LIMIT, hot_lane=request.param)
    client, namespace = open_client(fresh_store.runtime_dir, config)
    yield client, namespace
    client.close()


def test_a_miss_then_a_hit(opened: tuple[Client, Namespace]) -> None:
    """A prompt misses before its pages are inserted, and then matches all but its last token."""
    client, namespace = opened
    with namespace.match(TOKENS) as match:
        assert (match.token_count, match.pages, match.failure) == (0, [], None)
    pages = write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS) as match:
        assert (match.token_count, match.pages) == (16, pages)
        assert holds_tokens(namespace, TOKENS, match.pages)
        assert client.admin.stats().pin_count == 1
    with namespace.match(TOKENS[:16]) as shorter:
        assert shorter.token_count == 12
    assert namespace.peek(TOKENS) == namespace.cached_token_count(TOKENS) == 16


def test_a_released_match_is_released_at_the_store(opened: tuple[Client, Namespace]) -> None:
    """A match that ended, also by an exception, is released at the store after a flush."""
    client, namespace = opened
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    assert match.pin_id is not None
    with pytest.raises(KeyError), match:
        raise KeyError
    assert match.pin_id is None
    assert client.flush(LIMIT)
    assert nothing_held(client)


def test_the_first_writer_stays(
    opened: tuple[Client, Namespace], fresh_store: RunningStore
) -> None:
    """The second writer of the same pages gets the first one's pages, and both match those."""
    _, namespace = opened
    other, mirror = open_client(fresh_store.runtime_dir)
    with mirror.reserve(start_page=0, page_count=4) as duplicate:
        pages = write_and_insert(namespace, TOKENS)
        for number, page in enumerate(duplicate.pages):
            mirror.page(page)[:] = page_bytes(TOKENS, number)
        inserted = duplicate.insert(TOKENS[:16], position=0)
        assert inserted == (pages, 0)
        assert set(duplicate.pages).isdisjoint(pages)
    other.close()


def test_a_reservation_grows_and_inserts_in_parts(opened: tuple[Client, Namespace]) -> None:
    """A reservation grows to a total, is inserted in parts, and is the base of the next part."""
    client, namespace = opened
    with namespace.reserve(start_page=0, page_count=1) as reservation:
        first = list(reservation.pages)
        assert reservation.insert(TOKENS[:4], position=0) == (first, 1)
        assert reservation.grow(3)[:1] == first
        assert reservation.page_count == 3
        inserted = reservation.insert(TOKENS[4:12], position=4, base=reservation)
        assert inserted == (reservation.pages[1:], 2)
        with namespace.match(TOKENS) as match:
            assert match.token_count == 12
    assert client.flush(LIMIT)
    assert nothing_held(client)


def test_slots_released_are_there_for_the_next_reserve(opened: tuple[Client, Namespace]) -> None:
    """A reserve waits for earlier releases of the same thread, and finds their slots."""
    _, namespace = opened
    assert wait_until(lambda: fill(namespace, 32))
    for _ in range(20):
        with namespace.reserve(start_page=0, page_count=32) as reservation:
            assert reservation.page_count == 32


def fill(namespace: Namespace, count: int) -> bool:
    """Reserves that many slots, so that the arena grows. Returns whether they were granted."""
    try:
        namespace.reserve(start_page=0, page_count=count).abort()
    except errors.PoolExhausted:
        return False
    return True


def test_a_full_store_is_a_match_without_a_reservation(opened: tuple[Client, Namespace]) -> None:
    """In a full store a reserve is refused by name, and an acquire still returns its match."""
    _, namespace = opened
    write_and_insert(namespace, TOKENS)
    assert wait_until(lambda: fill(namespace, 28))
    with namespace.match(TOKENS), namespace.reserve(start_page=0, page_count=28):
        with pytest.raises(errors.PoolExhausted) as refused:
            namespace.reserve(start_page=0, page_count=1)
        assert refused.value.metadata["requested"] == "1"
        assert refused.value.retry_after_s is not None
        with namespace.acquire(TOKENS, total_page_count=8) as acquired:
            assert acquired.match.token_count == 16
            assert (acquired.reservation, acquired.failure) == (None, None)


def test_new_extents_are_mapped_as_the_arena_grows(opened: tuple[Client, Namespace]) -> None:
    """A new extent of the store is mapped by itself, and changes the session's number."""
    _, namespace = opened
    number = namespace.session_number
    assert wait_until(lambda: fill(namespace, 32))
    assert len(namespace.extents) == 2
    assert namespace.session_number > number
    assert all(len(view) == 16 * LAYOUT.page_bytes for view in namespace.extents.values())


def test_a_namespace_without_memory_says_so(fresh_store: RunningStore) -> None:
    """A namespace whose layout has no room for one page in the store reports the reason."""
    content = PagedContent(layer_count=64, kv_head_count=64, head_dim=512, dtype="float32")
    with Client(fresh_store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        namespace = client.namespace(IDENTITY, PageLayout.paged(64, content))
        assert wait_until(lambda: "slots" in str(namespace.failure))
        assert isinstance(namespace.failure, errors.StoreUnavailable)


def test_another_layout_is_refused(
    opened: tuple[Client, Namespace], fresh_store: RunningStore
) -> None:
    """A namespace with another layout does not open, has the reason, and misses."""
    other = Client(fresh_store.runtime_dir)
    other.start()
    wrong = other.namespace(IDENTITY, PageLayout.paged(8, PagedContent(2, 1, 8, "float32")))
    assert wait_until(lambda: isinstance(wrong.failure, errors.LayoutMismatch))
    assert isinstance(wrong.match(TOKENS).failure, errors.LayoutMismatch)
    with pytest.raises(errors.LayoutMismatch):
        wrong.reserve(start_page=0, page_count=1)
    assert opened[1].failure is None
    other.close()


def test_tensors_share_the_memory(opened: tuple[Client, Namespace]) -> None:
    """A torch view of an extent and a page's bytes are the same memory."""
    _, namespace = opened
    with namespace.reserve(start_page=0, page_count=2) as reservation:
        page = reservation.pages[1]
        tensor = namespace.extent_tensor(page.extent_id)
        assert tuple(tensor.shape) == (16, 4, 2, 4, 2, 16)
        tensor[page.slot] = 1.5
        assert bytes(namespace.page(page)) == b"\x00\x00\xc0\x3f" * (LAYOUT.page_bytes // 4)
        namespace.page(page)[:] = bytes(LAYOUT.page_bytes)
        assert not namespace.page_tensor(page).any()


def test_many_threads_share_a_client(opened: tuple[Client, Namespace]) -> None:
    """Threads that match, write and release at the same time see only their own bytes."""
    client, namespace = opened
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(10):
            tokens = [seed, turn % 3, *range(15)]
            with namespace.match(tokens) as match:
                if not holds_tokens(namespace, tokens, match.pages):
                    wrong.append(f"{seed}/{turn}")
            with namespace.acquire(tokens, total_page_count=2) as acquired:
                start = acquired.match.token_count
                if acquired.reservation is not None and start < 8:
                    for number, page in enumerate(acquired.reservation.pages, start=start // 4):
                        namespace.page(page)[:] = page_bytes(tokens, number)
                    new = tokens[start:8]
                    acquired.reservation.insert(new, position=start, base=acquired.match)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.flush(LIMIT)
    assert nothing_held(client)


def test_a_device_that_fails_keeps_the_pages(fresh_store: RunningStore) -> None:
    """Nothing is inserted or released if the wait for the device fails."""
    broken = threading.Event()

    def wait() -> None:
        if broken.is_set():
            raise ArithmeticError

    client, namespace = open_client(
        fresh_store.runtime_dir,
        ClientConfig(wait_for_device=wait, call_timeout=LIMIT, close_timeout=0.2),
    )
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    reservation = namespace.reserve(start_page=4, page_count=1)
    broken.set()
    with pytest.raises(ArithmeticError):
        reservation.insert(TOKENS[:4], position=16, base=match)
    with pytest.raises(ArithmeticError), match, reservation:
        raise KeyError
    assert client.flush(LIMIT)
    stats = client.admin.stats()
    assert (stats.pin_count, stats.reservation_count) == (1, 1)
    client.close()
    assert fresh_store.log.count("lease_ended") == 0
    broken.clear()
    match.release()
    reservation.abort()


def test_closing_ends_the_lease(fresh_store: RunningStore) -> None:
    """A client that closes without holds leaves no lease and no mapping."""
    before = memfd_mappings()
    client, namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    assert memfd_mappings() == before + 1
    client.close()
    client.close()
    assert memfd_mappings() == before
    with connect_admin(fresh_store.runtime_dir) as admin:
        assert admin.leases() == []


def test_a_closed_client_is_a_miss(opened: tuple[Client, Namespace]) -> None:
    """After close every match misses and every reserve is refused by the client."""
    client, namespace = opened
    client.close()
    assert isinstance(namespace.match(TOKENS).failure, errors.ClientClosed)
    assert namespace.peek(TOKENS) == 0
    assert namespace.cached_token_count(TOKENS) is None
    assert namespace.peek_in_flight(TOKENS) is None
    with pytest.raises(errors.ClientClosed):
        namespace.reserve(start_page=0, page_count=1)
    assert (client.connected, client.store_epoch, namespace.wait_open(0)) == (False, None, False)
