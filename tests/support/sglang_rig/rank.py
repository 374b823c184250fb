"""One rank of an engine on a real store: the linker's parts and a pool, without SGLang."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kvstore_client import Acquired, NamespaceIdentity
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.testing import wait_until
from kvstore_client.values.packed_tokens import ONE_MORE, pack_tokens
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.engine.model_pages import ModelPages
from kvstore_sglang.engine.token_pages import TokenPages
from kvstore_sglang.transfers.hanging_pages import HangingPages
from kvstore_sglang.transfers.loads import ComponentLoad, Loads, QueuedLoad
from kvstore_sglang.transfers.lookups import Lookups
from kvstore_sglang.transfers.page_copies import PageCopies
from kvstore_sglang.transfers.saves import SavedPages, Saves
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.pools import (
    PAGE,
    MHATokenToKVPool,
    SWAKVPool,
    plain_pages,
    plain_pool,
    slots_of,
    window_pages,
    window_pool,
)

PAGES, PAGE_BYTES, LIMIT = 16, 1536, 30.0
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")


@dataclass
class Rank:
    """The parts of a linker over the pages of a model."""

    access: StoreAccess
    pages: ModelPages
    counts: "Counter[str]" = field(default_factory=Counter)

    def __post_init__(self) -> None:
        store, memory = EngineStore(self.access, self.pages.windows), self.access.memory
        pack = TokenPages(PAGE, 1 << 20).pack
        self.device = self.pages.device
        layers = self.pages.layer_count
        self.counter = LayerWiseLoadCounter(layers)
        self.lookups = Lookups(store, pack, PAGE, LIMIT, self.counts)
        self.loads = Loads(PageCopies(self.device, memory), self.counter, layers, PAGE, self.counts)
        self.saves = Saves(
            store, self.pages.path, PageCopies(self.device, memory), PAGE, self.counts
        )

    def save(
        self,
        tokens: list[int],
        numbers: list[int],
        salt: bytes = b"",
        events: Sequence[torch.cuda.Event] = (),
        hanging: Sequence[int] = (),
    ) -> None:
        """Queues the pages of some tokens; ``hanging`` are those of windows at their end."""
        slots = slots_of(numbers).to(self.device)
        [windows] = self.pages.others.values() if hanging else [None]
        others = [] if windows is None else [HangingPages(windows, slots_of(hanging))]
        self.saves.queue(SavedPages(salt, pack_tokens(tokens), slots, events, hanging=others))

    def saved(self) -> bool:
        """Returns the result of the oldest save."""
        assert wait_until(lambda: self.saves.completed_count > 0, LIMIT)
        return self.saves.pop()

    def find(self, tokens: list[int], device_pages: int = 0, salt: bytes = b"") -> int:
        """Looks the one request up."""
        return self.lookups.find("request", salt, tokens, device_pages)

    def load(self, first: int, numbers: list[int], windows: Sequence[int] = ()) -> bool:
        """Loads what a lookup found into pages of the pool; ``windows`` are of the other one."""
        slots = slots_of(numbers).to(self.device)
        loads = [ComponentLoad(self.pages.path, first, slots)]
        for each in self.pages.others.values():
            start = first + len(numbers) - len(windows)
            loads.append(ComponentLoad(each, start, slots_of(windows)))
        match = self.lookups.take("request")
        self.loads.queue("request", QueuedLoad(match, first, len(numbers), tuple(loads)))
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


@dataclass
class PlainRank(Rank):
    """A rank of a model with full attention alone, and its pool of ``PAGES`` pages."""

    pool: MHATokenToKVPool = field(kw_only=True)


@dataclass
class WindowRank(Rank):
    """A rank of a model with sliding windows, and its pools of ``PAGES`` pages each."""

    pool: SWAKVPool = field(kw_only=True)


def rank_of(runtime_dir: Path, device: int | None = None) -> PlainRank:
    """Returns a rank that reaches a store, on a CPU or on a GPU."""
    place = "cpu" if device is None else f"cuda:{device}"
    pool = plain_pool(PAGES, place)
    pages = plain_pages(pool)
    assert pages.layout.page_bytes == PAGE_BYTES
    return PlainRank(_access(runtime_dir, pages, device), pages, pool=pool)


def window_rank_of(runtime_dir: Path) -> WindowRank:
    """Returns a rank with sliding windows that reaches a store."""
    pool = window_pool(PAGES)
    pages = window_pages(pool)
    return WindowRank(_access(runtime_dir, pages, None), pages, pool=pool)


def _access(runtime_dir: Path, pages: ModelPages, device: int | None) -> StoreAccess:
    access = StoreAccess(
        str(runtime_dir),
        IDENTITY,
        pages.layout,
        name="sglang tiny",
        call_timeout=LIMIT,
        device=device,
    )
    assert wait_until(lambda: access.usable and access.memory.failure is None)
    return access


def tokens_of(first: int, page_count: int) -> list[int]:
    """Returns tokens of whole pages, other ones for each ``first``."""
    return list(range(first, first + page_count * PAGE))
