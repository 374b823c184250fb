"""The memory of each tier, by the settings."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import structlog

from kvstore.assembly.access_rules import Access
from kvstore.assembly.remote_setup import remote_tier
from kvstore.assembly.remote_state import open_state_folder, tenant_keys
from kvstore.config.settings import Config
from kvstore.core.pool.tenant import TenantKeys, no_key
from kvstore.service.clock import Clock
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.signals import Signals
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.errors import CudaFailed, DeviceUnavailable, SlabInUse, SlabUnusable
from kvstore.storage.extent import MemorySource
from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.host import numa
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.host.hugepages import Hugepages
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab, SlabConfig
from kvstore.storage.write_admission import FirstTouch, WriteAdmission

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The number of checks, and the time between them, while a device has less left than the budget.
MEMORY_CHECKS = 20
MEMORY_CHECK_SECONDS = 1.0
# Bytes. Less is only some pages of the smallest useful models.
SMALL_TIER = 1 << 20
# The segments of a slab if its size allows: so large that each is written in large runs.
LARGEST_SEGMENT = 256 << 20
SEGMENTS_IN_A_SLAB = 4
# A NUMA node can be preferred only among this many.
SEVERAL = 2
# The most bytes on their way to tier 3, and as many on their way back.
MOST_QUEUED = 256 << 20
UNUSABLE = "the store goes on without tier 3 until it is started again; see the disk"


def tier_1_source(
    config: Config, stack: ExitStack, signals: Signals, held: HeldMemory | None = None
) -> MemorySource:
    """Returns the source of memory for tier 1; raises ``DeviceUnavailable``.

    One of ``signals`` ends the wait for a device. Memory of the host is deposited in ``held``.
    """
    if config.tier1_bytes < SMALL_TIER:
        log.warning("tier1_bytes_small", tier1_bytes=config.tier1_bytes)
    if config.cuda_device is None:
        host = HostMemory(hugepages=Hugepages(config.hugepages), held=held)
        host.warn_beyond(config.tier1_bytes)
        return host
    device = CudaDevice(config.cuda_device)
    stack.callback(device.close)
    checks = iter(range(MEMORY_CHECKS))

    def pause() -> bool:
        return next(checks, None) is not None and not signals.came(MEMORY_CHECK_SECONDS)

    if config.tier1_reserve == "all":
        device.reserve(config.tier1_bytes, config.bytes_of_an_extent, pause)
    else:
        device.require(config.tier1_bytes, pause)
    return device


def tiers_below(
    config: Config, access: Access, clock: Clock, stack: ExitStack
) -> tuple[list[SlowTier], TenantKeys]:
    """Returns the tiers below memory, nearest first, and the keys of tenants in them.

    The first is that of the disk, present or not. ``stack`` closes them. Raises ``SlabInUse`` or
    ``UnusableStateFolder``.
    """
    disk = tier_3(config)
    stack.callback(disk.close)
    if access.remote is None:
        return [disk], no_key
    folder = open_state_folder(config.remote_state_folder, stack)
    number = int(disk.page_store is not None)
    remote = remote_tier(config, access.remote, number, clock, folder)
    stack.callback(remote.close)
    return [disk, remote], tenant_keys(config, access.known.remote_keys, folder)


def tier_3(config: Config) -> SlowTier:
    """Returns tier 3, with its page store or the reason why it has none. Raises ``SlabInUse``."""
    slab = slab_config(config)
    admission = FirstTouch() if config.tier3_write == "through" else None
    return SlowTier() if slab is None else open_slab(slab, admission)


def open_slab(config: SlabConfig, admission: WriteAdmission | None = None) -> SlowTier:
    """Opens the slab; logs a failure and continues without tier 3.

    Pages are written as ``admission`` says, or at their second touch without one. Raises
    ``SlabInUse`` if another process has the file.
    """
    try:
        return SlowTier(Slab(config, SlabClock()), admission=admission)
    except SlabInUse:
        raise
    except SlabUnusable as error:
        log.error("tier3_unusable", path=str(config.path), why=str(error), advice=UNUSABLE)  # noqa: TRY400 - the reason is the message
        return SlowTier(why=str(error))


def slab_config(config: Config) -> SlabConfig | None:
    """Returns the slab's path, size and segments; None without tier 3."""
    if config.tier3_path is None:
        return None
    # Pages on their way to the disk hold their slots in tier 1, so the queue is bounded.
    queue_bytes = min(config.tier1_bytes // 4, MOST_QUEUED)
    segment_bytes = (config.tier3_bytes - ALIGNMENT) // SEGMENTS_IN_A_SLAB
    segment_bytes = min(segment_bytes, LARGEST_SEGMENT) // ALIGNMENT * ALIGNMENT
    return SlabConfig(
        config.tier3_path,
        config.tier3_bytes,
        segment_bytes=segment_bytes,
        queue_bytes=queue_bytes,
    )


def tier_2(
    config: Config,
    extent_ids: Iterator[int],
    nearest: MemorySource,
    held: HeldMemory | None = None,
) -> Arenas | None:
    """Returns the memory of tier 2, or None without one; registered if ``nearest`` is a GPU.

    It is deposited in ``held``. Raises ``DeviceUnavailable`` for a NUMA node that the machine does
    not have.
    """
    if not config.tier2_bytes:
        return None
    device = nearest if isinstance(nearest, CudaDevice) else None
    host = HostMemory(
        register=None if device is None else device.copier.register,
        hugepages=Hugepages(config.hugepages),
        numa_node=tier_2_node(config, device),
        held=held,
    )
    host.warn_beyond(config.tier2_bytes, tier=2)
    return Arenas(
        budget_bytes=config.tier2_bytes,
        extent_bytes=config.bytes_of_a_tier2_extent,
        source=host,
        extent_ids=extent_ids,
        tier=2,
    )


def tier_2_node(config: Config, device: CudaDevice | None, root: Path = Path("/")) -> int | None:
    """Returns the preferred NUMA node of tier 2, or None for no preference.

    Raises ``DeviceUnavailable`` for a node without memory. The machine's nodes are read below
    ``root``.
    """
    present, named = numa.nodes(root), config.named_numa_node
    if named is not None:
        if named not in present:
            there = ", ".join(map(str, present)) or "none that the kernel names"
            raise DeviceUnavailable(
                f"tier2_numa_node is {named}, but the nodes with memory are: {there}. "
                "Set one of them, auto or off"
            )
        return named
    if config.tier2_numa_node == "off" or device is None or len(present) < SEVERAL:
        return None
    try:
        found = numa.node_of_pci(device.pci_bus_id(), root)
    except CudaFailed as error:
        log.warning("numa_node_unusable", why=str(error))
        return None
    return found if found in present else None
