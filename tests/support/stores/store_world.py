"""A whole store in this process: real memory, the real core, time as a number."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import Caller, Identity, Sequence
from kvstore.service.matching import Sampler
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.store import KVStore
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.extent import MemorySource
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.write_admission import WriteAdmission

EPOCH = 81985529216486895
PAGE_TOKENS = 4
PAGE_BYTES = 256
IDENTITY = NamespaceIdentity(b"model digest 16+")


@dataclass
class ManualClock:
    """A clock that shows what the test says."""

    now: float = 1000.0

    def __call__(self) -> float:
        """Returns the time that was set."""
        return self.now


@dataclass
class RunningClock(ManualClock):
    """A clock that goes on by itself, and that a test can set forward."""

    start: float = field(default_factory=monotonic)

    def __call__(self) -> float:
        """Returns the time that was set, and what has passed since the beginning."""
        return self.now + monotonic() - self.start


@dataclass
class World:
    """A store, what it is made of, and workers that use it."""

    store: KVStore
    cache: PrefixCache
    arenas: Arenas
    clock: ManualClock
    layout: PageLayout
    numbers: Iterator[int]
    lower: Arenas | None = None

    def close(self) -> None:
        """Gives all memory up."""
        self.arenas.close()
        if self.lower is not None:
            self.lower.close()

    def check(self) -> None:
        """Checks the core, which other threads may be changing: under the store's mutex."""
        with self.store._mutex:
            Invariants(self.cache).check()

    def caller(self, *, tenant: str = "uid-1", epoch: int | None = EPOCH) -> Caller:
        """Returns a caller with a lease id of its own, granted nothing yet."""
        number = next(self.numbers)
        lease_id, secret = number.to_bytes(16), f"secret {number}".encode()
        return Caller(Identity(tenant), lease_id, secret, epoch)

    def worker(self, *, tenant: str = "uid-1", name: str = "worker") -> Caller:
        """Returns a caller whose lease has one attached process, of the caller's number."""
        caller = self.caller(tenant=tenant)
        self.store.grant(caller, ttl=10.0, display_name=name, features=())
        number = self.process_id(caller)
        self.store.bind(caller, process_id=number, pid=number, uid=1)
        return caller

    def process_id(self, caller: Caller) -> int:
        """Returns the number of a worker's process."""
        return int.from_bytes(caller.lease_id)

    def open_namespace(self, caller: Caller) -> bytes:
        """Opens the namespace that workers of a tenant share, map it, and returns its id."""
        namespace = self.store.open_namespace(caller, IDENTITY, self.layout)
        self.map_extents(caller)
        return namespace.namespace_id

    def map_extents(self, caller: Caller) -> None:
        """Acknowledges everything that a worker's process is owed."""
        owed = self.store.hand_out(self.process_id(caller))
        self.store.acknowledge(self.process_id(caller), [each.shape.extent_id for each in owed])


# Takes what ``make_world`` takes.
Worlds: TypeAlias = Callable[..., World]


def make_world(  # noqa: PLR0913  # one for each part of a store
    *,
    slots: int = 10,
    extent_slots: int = 4,
    memory_root: Path = Path("/"),
    quotas: QuotaTable | None = None,
    verify_rate: float = 0.0,
    poison: bool = False,
    lower_slots: int = 0,
    tier_policy: TierPolicy | None = None,
    device: CudaDevice | None = None,
    slow_tier: SlowTier | None = None,
    remote_tier: SlowTier | None = None,
    admission: WriteAdmission | None = None,
    clock: ManualClock | None = None,
    limits: Limits | None = None,
) -> World:
    """Returns a store with a budget of ``slots``, in extents of ``extent_slots``.

    With a ``device`` tier 1 is one extent of its memory, and tier 2 is registered for it.
    ``lower_slots`` are those of tier 2, and ``tier_policy`` says how it is used. ``slow_tier``
    and ``remote_tier`` are tier 3, and ``admission`` says what is written to the former. Its memory
    and its disk are the caller's to close.
    """
    clock = clock or ManualClock()
    extent_ids = count(1)
    sources: tuple[MemorySource, MemorySource] = (HostMemory(memory_root), HostMemory(memory_root))
    if device is not None:
        sources = device, HostMemory(memory_root, device.copier.register)
    arenas, lower = (
        Arenas(
            # Of a device, as much as it gives at least.
            budget_bytes=max(budget * PAGE_BYTES, source.granularity),
            extent_bytes=extent_slots * PAGE_BYTES,
            source=source,
            extent_ids=extent_ids,
            tier=tier,
        )
        for tier, budget, source in zip((1, 2), (slots, lower_slots), sources, strict=True)
    )
    slow_tiers = [each for each in (slow_tier, remote_tier) if each is not None]
    if slow_tier is not None and admission is not None:
        slow_tier.admission = admission
    cache = PrefixCache(
        EPOCH,
        limits or Limits(),
        quotas=quotas,
        recycled=arenas.poison if poison else None,
        tier_policy=tier_policy,
        page_stores=sum(each.page_store is not None for each in slow_tiers),
    )
    layout = PageLayout(
        PAGE_TOKENS, PAGE_BYTES, 1, OpaqueContent(b"fingerprint", divides_by_token=True)
    )
    store = KVStore(
        cache,
        arenas=arenas,
        lower=None if tier_policy is None else lower,
        clock=clock,
        sampler=Sampler(verify_rate),
        slow_tiers=slow_tiers,
    )
    return World(store, cache, arenas, clock, layout, count(1), lower)


def sequence_of(pages: int, *, rest: int = 1, salt: int = 0) -> Sequence:
    """Returns a sequence of whole pages and some more tokens, which count up from ``salt``."""
    return Sequence(array("I", range(salt, salt + pages * PAGE_TOKENS + rest)).tobytes())
