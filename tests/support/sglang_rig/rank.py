"""One rank of an engine on a real store: the linker's parts and a pool, without SGLang."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kvstore_client import Acquired, NamespaceIdentity
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.packed_tokens import ONE_MORE, pack_tokens
from kvstore_client.testing import wait_until
from kvstore_sglang.engine.device_pool import DevicePool
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.engine.token_pages import TokenPages
from kvstore_sglang.transfers.loads import Loads, QueuedLoad
from kvstore_sglang.transfers.lookups import Lookups
from kvstore_sglang.transfers.page_copies import PageCopies
from kvstore_sglang.transfers.saves import SavedPages, Saves
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.pools import LAYERS, PAGE, MHATokenToKVPool, device_pool, plain_pool, slots_of

PAGES, PAGE_BYTES, LIMIT = 16, 1536, 30.0
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")


@dataclass
class Rank:
    """The parts of a linker, and a pool of ``PAGES`` pages."""

    access: StoreAccess
    pool: MHATokenToKVPool
    counts: "Counter[str]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        planes: DevicePool = device_pool(self.pool)
        store, memory = EngineStore(self.access), self.access.memory
        pack = TokenPages(PAGE, 1 << 20).pack
        self.counter = LayerWiseLoadCounter(LAYERS)
        self.lookups = Lookups(store, pack, PAGE, LIMIT, self.counts)
        self.loads = Loads(PageCopies(planes, memory), self.counter, LAYERS, PAGE, self.counts)
        self.saves = Saves(store, PageCopies(planes, memory), PAGE, self.counts)
        self._device = self.pool.k_buffer[0].device

    def save(
        self,
        tokens: list[int],
        numbers: list[int],
        salt: bytes = b"",
        events: Sequence[torch.cuda.Event] = (),
    ) -> None:
        """Queues the pages of some tokens."""
        slots = slots_of(numbers).to(self._device)
        self.saves.queue(SavedPages(salt, pack_tokens(tokens), slots, events))

    def saved(self) -> bool:
        """Returns the result of the oldest save."""
        assert wait_until(lambda: self.saves.completed_count > 0, LIMIT)
        return self.saves.pop()

    def find(self, tokens: list[int], device_pages: int = 0, salt: bytes = b"") -> int:
        """Looks the one request up."""
        return self.lookups.find("request", salt, tokens, device_pages)

    def load(self, first: int, numbers: list[int]) -> bool:
        """Loads what a lookup found into pages of the pool."""
        slots = slots_of(numbers).to(self._device)
        match = self.lookups.take("request")
        self.loads.queue("request", QueuedLoad(match, first, len(numbers), slots))
        return self.loads.finish(self.loads.start())

    def acquired(self, tokens: list[int]) -> Acquired:
        """Acquires slots for the pages of some tokens, as an engine that saves them does."""
        packed = pack_tokens(tokens) + ONE_MORE
        return self.access.memory.acquire(packed, total_page_count=len(tokens) // PAGE)

    def close(self) -> None:
        """Ends everything."""
        self.saves.close()
        self.loads.close()
        self.lookups.drop_all()
        self.access.close()


def rank_of(runtime_dir: Path, device: int | None = None) -> Rank:
    """Returns a rank that reaches a store, on a CPU or on a GPU."""
    layout = device_pool(plain_pool(1)).layout
    assert layout.page_bytes == PAGE_BYTES
    access = StoreAccess(
        str(runtime_dir), IDENTITY, layout, name="sglang tiny", call_timeout=LIMIT, device=device
    )
    assert wait_until(lambda: access.usable and access.memory.failure is None)
    place = "cpu" if device is None else f"cuda:{device}"
    return Rank(access, plain_pool(PAGES, place))


def tokens_of(first: int, page_count: int) -> list[int]:
    """Returns tokens of whole pages, other ones for each ``first``."""
    return list(range(first, first + page_count * PAGE))
