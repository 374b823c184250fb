"""A store built from its parts, by the settings."""

from contextlib import ExitStack

from kvstore.config.settings import Config
from kvstore.core import Limits, PrefixCache, QuotaTable
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.process import Signals
from kvstore.service.clock import Clock
from kvstore.service.ids import random_ids
from kvstore.service.matching import Sampler
from kvstore.service.store import KVStore
from kvstore.service.timing import CallTimes
from kvstore.storage.arenas import Arenas
from kvstore.storage.slab.policy import FirstTouch
from kvstore.storage.tiers import Tiers
from kvstore.tier_memory import tier_1_source, tier_2, tier_3

INDEXES: dict[str, IndexFactory] = {"hash": HashIndex, "radix": RadixIndex}


def build_store(
    config: Config,
    epoch: int,
    quotas: QuotaTable,
    clock: Clock,
    stack: ExitStack,
    signals: Signals,
) -> KVStore:
    """Returns a store over the memory and the disk that the settings name; ``stack`` closes both.

    One of ``signals`` ends the wait for a device. Raises ``DeviceUnavailable`` or
    ``SlabInUse``.
    """
    extent_ids = random_ids()
    arenas = Arenas(
        budget_bytes=config.tier1_bytes,
        extent_bytes=config.bytes_of_an_extent,
        source=tier_1_source(config, stack, signals),
        extent_ids=extent_ids,
    )
    lower = tier_2(config, extent_ids, arenas.source)
    memory = Tiers(arenas) if lower is None else Tiers(arenas, lower)
    stack.callback(memory.close)
    # After it, so that what is written or read is done before its memory goes.
    disk = tier_3(config)
    stack.callback(disk.close)
    cache = PrefixCache(
        epoch,
        Limits(min_ttl=config.min_ttl, default_ttl=config.default_ttl, max_ttl=config.max_ttl),
        POLICIES[config.eviction_policy],
        quotas=quotas,
        arena_ids=random_ids(),
        recycled=memory.poison if config.debug_poison_freed_slots else None,
        index=INDEXES[config.prefix_cache_backend],
        tier_policy=config.tier_policy(on_gpu=config.cuda_device is not None),
        third_tier=disk.slab is not None,
    )
    store = KVStore(
        cache,
        arenas=arenas,
        lower=lower,
        clock=clock,
        sampler=Sampler(config.verify_rate),
        disk=disk,
        admission=FirstTouch() if config.tier3_write == "through" else None,
        prefix_cache_backend=config.prefix_cache_backend,
    )
    if config.metrics_listen is not None:
        store.call_times |= {"grpc": CallTimes(), "lane": CallTimes()}
    return store
