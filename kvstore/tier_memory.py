"""Where each tier's memory comes from, by the settings."""

from collections.abc import Iterator
from contextlib import ExitStack

import structlog

from kvstore.config import Config
from kvstore.signals import Signals
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda_arena import CudaDevice
from kvstore.storage.extent import MemorySource
from kvstore.storage.host_arena import HostMemory

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# How often and how far apart a device is looked at that has less left than the budget.
ROOM_LOOKS = 20
ROOM_LOOK_SECONDS = 1.0
# Bytes: less is some pages of the smallest models that are of use.
SMALL_TIER = 1 << 20


def tier_1_source(config: Config, stack: ExitStack, signals: Signals) -> MemorySource:
    """Return where the pages of tier 1 are to be; raises ``DeviceUnavailable``.

    One of ``signals`` ends the wait for a device.
    """
    if config.tier1_bytes < SMALL_TIER:
        log.warning("tier1_bytes_small", tier1_bytes=config.tier1_bytes)
    if config.cuda_device is None:
        host = HostMemory()
        host.warn_beyond(config.tier1_bytes)
        return host
    device = CudaDevice(config.cuda_device)
    stack.callback(device.close)
    looks = iter(range(ROOM_LOOKS))
    device.require(
        config.tier1_bytes,
        lambda: next(looks, None) is not None and not signals.came(ROOM_LOOK_SECONDS),
    )
    return device


def tier_2(config: Config, extent_ids: Iterator[int], nearest: MemorySource) -> Arenas | None:
    """Return the memory of tier 2, if there is to be one; registered where ``nearest`` is a GPU."""
    if not config.tier2_bytes:
        return None
    register = nearest.copier.register if isinstance(nearest, CudaDevice) else None
    host = HostMemory(register=register)
    host.warn_beyond(config.tier2_bytes, tier=2)
    return Arenas(
        budget_bytes=config.tier2_bytes,
        extent_bytes=config.bytes_of_a_tier2_extent,
        source=host,
        extent_ids=extent_ids,
        tier=2,
    )
