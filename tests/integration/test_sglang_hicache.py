"""HiCache's pages on a real store: found, loaded and saved by their hashes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import pytest

from kvstore_client import (
    Client,
    ClientConfig,
    Namespace,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
)
from kvstore_client.admin import connect_admin
from kvstore_client.testing import RunningStore, wait_until
from kvstore_sglang.hicache.hash_path import WORDS, HashPath
from kvstore_sglang.hicache.hash_store import HashStore
from kvstore_sglang.hicache.host_pages import HostPages
from sglang_rig.host_pool import HostPool

PAGES = 8
IDENTITY = NamespaceIdentity(b"a model's digest")
KEYS = [sha256(bytes([number])).hexdigest() for number in range(PAGES)]
OTHERS = [sha256(bytes([100 + number])).hexdigest() for number in range(PAGES)]
LONGEST = 20.0


@dataclass
class Engine:
    """An engine's pool and its storage; page k of the pool is for page k of a prompt."""

    pool: HostPool
    namespace: Namespace
    storage: HashStore
    counts: "Counter[str]"

    def find(self, *, before: int = 0, keys: list[str] = KEYS) -> int:
        """Asks for the pages after a prefix."""
        return self.storage.find(HashPath.of(keys[before:], keys[:before]), keys[before:])

    def save(self, *, before: int = 0, end: int = PAGES, keys: list[str] = KEYS) -> list[bool]:
        """Saves pages after a prefix."""
        path = HashPath.of(keys[before:end], keys[:before])
        return self.storage.save(path, self.pool.indices(*range(before, end)))

    def load(self, *, before: int = 0, end: int = PAGES, keys: list[str] = KEYS) -> list[bool]:
        """Loads pages after a prefix."""
        path = HashPath.of(keys[before:end], keys[:before])
        return self.storage.load(path, keys[before:end], self.pool.indices(*range(before, end)))

    def fill(self) -> None:
        """Writes other content into each page of the pool."""
        for page in range(PAGES):
            self.pool.write(page, 16 * page)

    def has(self, *pages: int) -> bool:
        """Returns whether these pages of the pool have the content that :meth:`fill` writes."""
        return all(self.pool.read(page) == {(16 * page, 16 * page + 1)} for page in pages)


@contextmanager
def engine(store: RunningStore, *, opened: bool = True) -> Iterator[Engine]:
    """Runs the storage of one engine."""
    pool, counts = HostPool(PAGES), Counter[str]()
    pages = HostPages(pool)
    layout = PageLayout(WORDS, pages.page_bytes, OpaqueContent(b"a layout's fingerprint"))
    with Client(store.runtime_dir, ClientConfig(call_timeout=LONGEST, ttl=60.0)) as client:
        namespace = client.namespace(IDENTITY, layout)
        if opened:
            assert namespace.wait_open(LONGEST), namespace.failure
        storage = HashStore(namespace, pages, counts)
        try:
            yield Engine(pool, namespace, storage, counts)
        finally:
            storage.close()


@pytest.fixture
def engines(fresh_store: RunningStore) -> Iterator[tuple[Engine, Engine]]:
    """Two engines on one store; the first has content in its pool."""
    with engine(fresh_store) as first, engine(fresh_store) as second:
        first.fill()
        yield first, second


def test_an_engine_loads_what_another_saved(engines: tuple[Engine, Engine]) -> None:
    """Every byte of every page arrives."""
    first, second = engines
    assert first.find() == 0
    assert first.save() == [True] * PAGES
    assert second.find() == PAGES
    assert second.load() == [True] * PAGES
    assert second.has(*range(PAGES))
    assert second.counts["loaded_tokens_1"] == PAGES * second.pool.page_size


def test_pages_after_a_prefix_are_found_by_all_hashes(engines: tuple[Engine, Engine]) -> None:
    """Saves and loads go on where a prefix ends, which is in the device's memory."""
    first, second = engines
    first.save(end=3)
    assert first.save(before=3, end=6) == [True] * 3
    assert second.find(before=2) == 4
    assert second.load(before=2, end=6) == [True] * 4
    assert second.has(2, 3, 4, 5)
    assert not second.has(0)


def test_pages_without_their_prefix_are_not_saved(engines: tuple[Engine, Engine]) -> None:
    """Nobody would find them, so no slot is used for them."""
    first, second = engines
    assert first.save(before=3) == [False] * 5
    assert second.find() == 0


def test_pages_that_are_there_are_saved_once(engines: tuple[Engine, Engine]) -> None:
    """A second engine copies only what is missing."""
    first, second = engines
    first.save(end=5)
    second.fill()
    assert second.save() == [True] * PAGES
    assert second.counts["stored_tokens"] == 3 * second.pool.page_size


def test_other_hashes_are_other_pages(engines: tuple[Engine, Engine]) -> None:
    """A prompt that parts after some pages hits those alone."""
    first, second = engines
    first.save()
    parting = [*KEYS[:3], *OTHERS[3:]]
    assert second.find(keys=parting) == 3
    assert second.load(keys=parting) == [True] * 3 + [False] * 5
    assert second.has(0, 1, 2)


def test_a_found_page_stays_until_it_is_read(
    fresh_store: RunningStore, engines: tuple[Engine, Engine]
) -> None:
    """A pin holds it between the two calls, and nothing is held after the second."""
    first, second = engines
    first.save()
    with connect_admin(fresh_store.runtime_dir) as admin:
        # Pins and reservations are given back in the background.
        assert wait_until(lambda: admin.stats().pin_count == 0, LONGEST)
        assert second.find() == PAGES
        assert admin.stats().pin_count == 1
        second.load()
        assert wait_until(lambda: admin.stats().pin_count == 0, LONGEST)


def test_a_store_that_is_gone_has_no_pages(fresh_store: RunningStore) -> None:
    """Every call answers without an error, and hits again once a store is back."""
    with engine(fresh_store) as only:
        only.fill()
        only.save()
        assert only.find() == PAGES
        fresh_store.kill()
        assert only.save() == [False] * PAGES
        fresh_store.start()
        # The pages that it found before are still pinned, and end only in a later call.
        assert wait_until(lambda: only.find() == 0 and only.namespace.failure is None, LONGEST)
        assert only.save() == [True] * PAGES
        assert only.find() == PAGES


def test_a_store_that_never_came_has_no_pages(fresh_store: RunningStore) -> None:
    """An engine runs without one."""
    fresh_store.stop()
    with engine(fresh_store, opened=False) as only:
        assert only.find() == 0
        assert only.load() == [False] * PAGES
        assert only.save() == [False] * PAGES
        assert only.counts["saves_failed"] == 1


def test_new_weights_find_nothing_of_the_old(engines: tuple[Engine, Engine]) -> None:
    """Another namespace has no page of the first, and keeps its own."""
    first, _ = engines
    first.save()
    first.find()
    other = first.namespace.salted(b"other weights")
    assert other.wait_open(LONGEST), other.failure
    first.storage.use(other)
    assert first.find() == 0
    assert first.save() == [True] * PAGES
    assert first.find() == PAGES
