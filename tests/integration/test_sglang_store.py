"""The parts of SGLang's linker on a real store: saves, lookups and loads of a device pool."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from kvstore_client import Acquired, NamespaceIdentity, StoreBudget
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.packed_tokens import ONE_MORE, pack_tokens
from kvstore_client.testing import RunningStore, wait_until
from kvstore_sglang.engine.device_pool import DevicePool
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.engine.salts import RequestSalts
from kvstore_sglang.engine.token_pages import TokenPages
from kvstore_sglang.transfers.loads import Loads, QueuedLoad
from kvstore_sglang.transfers.lookups import Lookups
from kvstore_sglang.transfers.page_copies import PageCopies
from kvstore_sglang.transfers.saves import RETRY_SECONDS, SavedPages, Saves
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.pools import (
    LAYERS,
    PAGE,
    MHATokenToKVPool,
    device_pool,
    page_of,
    plain_pool,
    slots_of,
    wipe,
)

PAGES, PAGE_BYTES, LIMIT = 16, 1536, 30.0
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
# One extent of 32 pages.
pytestmark = pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")


@dataclass
class Engine:
    """One rank of an engine, with the linker's parts and a pool of its own."""

    access: StoreAccess
    pool: MHATokenToKVPool = field(default_factory=lambda: plain_pool(PAGES))
    counts: "Counter[str]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        planes: DevicePool = device_pool(self.pool)
        store, memory = EngineStore(self.access), self.access.memory
        pack = TokenPages(PAGE, 1 << 20).pack
        self.counter = LayerWiseLoadCounter(LAYERS)
        self.lookups = Lookups(store, pack, PAGE, LIMIT, self.counts)
        self.loads = Loads(PageCopies(planes, memory), self.counter, LAYERS, PAGE, self.counts)
        self.saves = Saves(store, PageCopies(planes, memory), PAGE, self.counts)

    def save(self, tokens: list[int], numbers: list[int], salt: bytes = b"") -> None:
        """Queues the pages of some tokens."""
        self.saves.queue(SavedPages(salt, pack_tokens(tokens), slots_of(numbers)))

    def saved(self) -> bool:
        """Returns the result of the oldest save."""
        assert wait_until(lambda: self.saves.completed_count > 0, LIMIT)
        return self.saves.pop()

    def load(self, first: int, numbers: list[int]) -> bool:
        """Loads what a lookup found into pages of the pool."""
        match = self.lookups.take("request")
        self.loads.queue("request", QueuedLoad(match, first, len(numbers), slots_of(numbers)))
        return self.loads.finish(self.loads.start())

    def close(self) -> None:
        """Ends everything."""
        self.saves.close()
        self.loads.close()
        self.lookups.drop_all()
        self.access.close()


def engine_of(store: RunningStore) -> Engine:
    """Returns an engine that reaches a store."""
    layout = device_pool(plain_pool(1)).layout
    assert layout.page_bytes == PAGE_BYTES
    access = StoreAccess(
        str(store.runtime_dir), IDENTITY, layout, name="sglang tiny", call_timeout=LIMIT
    )
    assert wait_until(lambda: access.usable and access.memory.failure is None)
    return Engine(access)


@pytest.fixture
def engine(fresh_store: RunningStore) -> Iterator[Engine]:
    """Provides an engine on a store of its own."""
    made = engine_of(fresh_store)
    yield made
    made.close()


def tokens_of(first: int, page_count: int) -> list[int]:
    """Returns tokens of whole pages, other ones for each ``first``."""
    return list(range(first, first + page_count * PAGE))


def acquired(engine: Engine, tokens: list[int]) -> Acquired:
    """Acquires slots for the pages of some tokens, as an engine that saves them does."""
    packed = pack_tokens(tokens)
    count = len(tokens) // PAGE
    return engine.access.memory.acquire(packed + ONE_MORE, total_page_count=count)


def test_another_engine_loads_what_one_saved(engine: Engine, fresh_store: RunningStore) -> None:
    """The pages land as they were, in other pages of another engine's pool."""
    tokens = tokens_of(0, 5)
    before = [page_of(engine.pool, number) for number in range(PAGES)]
    engine.save(tokens[: 3 * PAGE], [4, 5, 9])
    engine.save(tokens, [4, 5, 9, 1, 0])
    assert [engine.saved(), engine.saved()] == [True, True]
    assert engine.counts["stored_tokens"] == 5 * PAGE
    other = engine_of(fresh_store)
    wipe(other.pool)
    assert other.lookups.find("request", b"", tokens, 1) == 4
    assert other.load(1, [7, 8, 2, 15])
    for target, source in zip([7, 8, 2, 15], [5, 9, 1, 0], strict=True):
        assert torch.equal(page_of(other.pool, target), before[source])
    assert other.counts["loaded_tokens_1"] == 4 * PAGE
    other.close()


def test_only_missing_pages_are_copied(engine: Engine) -> None:
    """A second save of the same sequence copies nothing, and of a longer one the rest."""
    tokens = tokens_of(0, 4)
    for numbers in ([0, 1, 2, 3], [4, 5, 6, 7]):
        engine.save(tokens, numbers)
        assert engine.saved()
    assert engine.counts["save_bytes"] == 4 * PAGE_BYTES
    longer = tokens + tokens_of(900, 2)
    engine.save(longer, [0, 1, 2, 3, 10, 11])
    assert engine.saved()
    assert engine.counts["save_bytes"] == 6 * PAGE_BYTES


def test_a_save_waits_for_an_engine_that_saves_the_same(engine: Engine) -> None:
    """It copies nothing if the other engine ends, though it had begun before."""
    tokens = tokens_of(0, 2)
    held: Acquired = engine.access.memory.acquire(
        pack_tokens(tokens) + ONE_MORE, total_page_count=2
    )
    assert held.reservation is not None
    engine.save(tokens, [3, 4])
    for place in held.reservation.pages:
        engine.access.memory.page_tensor(place).fill_(7)
    held.reservation.insert(tokens, position=0)
    held.release()
    assert engine.saved()
    assert engine.counts["save_bytes"] in (0, 2 * PAGE_BYTES)
    match = engine.access.memory.match(pack_tokens(tokens) + ONE_MORE)
    with match:
        assert (engine.access.memory.page_tensor(match.pages[0]) == 7).all()


def test_a_save_takes_over_from_an_engine_that_hangs(engine: Engine) -> None:
    """After ``RETRY_SECONDS`` the pages are copied by whoever has them."""
    tokens = tokens_of(0, 2)
    held = acquired(engine, tokens)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.counts["save_bytes"] == 2 * PAGE_BYTES
    held.release()


def test_a_new_salt_is_saved_and_found(engine: Engine) -> None:
    """The first save of a salt waits until its namespace is open, and so does a lookup."""
    salt, tokens = RequestSalts("").of("another adapter", None), tokens_of(0, 2)
    engine.save(tokens, [3, 4], salt)
    assert engine.saved()
    assert engine.lookups.find("request", b"", tokens, 0) == 0
    assert engine.lookups.find("request", salt, tokens, 0) == 2
    engine.lookups.drop("request")
    unknown = RequestSalts("").of("a third one", None)
    found = EngineStore(engine.access).match(unknown, pack_tokens(tokens), StoreBudget(LIMIT))
    assert found.failure is None


def test_a_full_store_takes_the_first_pages_and_the_rest_later(engine: Engine) -> None:
    """A save tries again while the store has no room; what fits is in the store at once."""
    filler = engine.access.memory.reserve(start_page=0, page_count=30)
    tokens = tokens_of(0, 4)
    engine.save(tokens, [0, 1, 2, 3])
    assert wait_until(lambda: engine.access.memory.peek(pack_tokens(tokens) + ONE_MORE) > 0, LIMIT)
    filler.abort()
    assert engine.saved()
    assert engine.counts["stored_tokens"] == 4 * PAGE
    assert engine.counts["save_bytes"] == 4 * PAGE_BYTES


def test_without_a_store_nothing_is_saved_or_found(
    engine: Engine, fresh_store: RunningStore
) -> None:
    """The end of the store is a miss, and its return needs no restart of the engine."""
    tokens = tokens_of(0, 2)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.lookups.find("request", b"", tokens, 0) == 2
    fresh_store.kill()
    assert wait_until(lambda: not engine.access.usable, LIMIT)
    engine.save(tokens_of(500, 2), [3, 4])
    assert not engine.saved()
    assert engine.lookups.find("other", b"", tokens, 0) == 0
    # What the lookup promised before still lands: its memory stays mapped.
    wipe(engine.pool)
    assert engine.load(0, [1, 2])
    assert page_of(engine.pool, 1).any()
    fresh_store.start()
    assert wait_until(lambda: engine.access.usable and engine.access.memory.failure is None, LIMIT)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.lookups.find("again", b"", tokens, 0) == 2


def test_pins_of_an_ended_session_do_not_keep_the_engine_from_the_next_one(
    engine: Engine, fresh_store: RunningStore
) -> None:
    """Waiting requests drop the pages of a store that was killed."""
    tokens = tokens_of(0, 2)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.lookups.find("request", b"", tokens, 0) == 2
    fresh_store.kill()
    fresh_store.start()

    def usable() -> bool:
        engine.lookups.drop_ended()
        return engine.access.usable

    assert wait_until(lambda: not engine.access.usable, LIMIT)
    assert wait_until(usable, LIMIT)
    assert len(engine.lookups) == 0


def test_a_reset_drops_what_waits(engine: Engine) -> None:
    """After a reset no thread reads the pool, and no result of before is left."""
    held = acquired(engine, tokens_of(0, 2))
    engine.save(tokens_of(0, 2), [3, 4])
    engine.save(tokens_of(500, 2), [3, 4])
    engine.saves.reset()
    assert engine.saves.completed_count == 0
    held.release()
    engine.save(tokens_of(700, 2), [3, 4])
    assert engine.saved()
    assert RETRY_SECONDS < LIMIT
