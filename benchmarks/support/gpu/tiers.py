"""The speed of pages to tier 2 and back, beside one large copy of as many bytes."""

import ctypes
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from random import Random
from statistics import median
from typing import Any

import torch

from kvstore.service.page_io.memory_mover import COPY_PAGES
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.extent import MemorySource
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.memory_tiers import Tiers
from support.gpu.plan import Plan, synchronize
from support.gpu.tier_store import TierStore

# Published and demoted sequences of COPY_PAGES pages in a round: all of tier 1.
WRITTEN = 4
# Tier 2's sequences: those of the round before, which tier 1 no longer has.
TIER_2 = 10


def measure_tiers(plan: Plan) -> list[dict[str, Any]]:
    """Returns a row for each page size: GB/s of each way, and its share of the one large copy.

    Figures are medians over the rounds, and all ways run once a round, in turns. ``copies`` are
    those of the storage alone: a batch of pages in random order. ``store`` adds all that a store
    does for them. Its ``down`` is the mover's step over some batches, with its decisions, and
    ``up`` is the match of one batch that promotes it. A byte that is read and written counts once.
    """
    return [_measure(plan, page_bytes) for page_bytes in plan.tier_page_bytes]


def _measure(plan: Plan, page_bytes: int) -> dict[str, Any]:
    batch = COPY_PAGES * page_bytes
    with ExitStack() as stack:
        nearest, host = _sources(plan.device, stack)
        numbers = count(1)

        def arenas(source: MemorySource, tier: int, sequences: int) -> Arenas:
            made = Arenas(
                budget_bytes=(sequences + 1) * batch,
                extent_bytes=sequences * batch,
                source=source,
                extent_ids=numbers,
                tier=tier,
            )
            stack.callback(made.close)
            return made

        upper, lower = arenas(nearest, 1, WRITTEN), arenas(host, 2, TIER_2)
        # Reserved before the store takes the rest: slots for copies without the store.
        first, second = (
            each.allocate(0, page_bytes, max_slots=COPY_PAGES).shape.extent_id << 32
            for each in (upper, lower)
        )
        order = list(range(COPY_PAGES))
        Random(1).shuffle(order)
        pairs = [(first + n, second + place) for n, place in enumerate(order)]
        tiers = Tiers(upper, lower)
        store = TierStore(upper, lower, page_bytes=page_bytes, pages=COPY_PAGES)
        ceilings = _large_copies(plan.device, batch)
        rounds: list[dict[tuple[str, str], float]] = []
        for number in range(0, (plan.tier_rounds + 1) * WRITTEN, WRITTEN):
            for each in range(number, number + WRITTEN):
                store.publish(each)
            ways: dict[tuple[str, str], Callable[[], object]] = {
                ("one large", "down"): ceilings[0],
                ("copies", "down"): lambda: _done(tiers, pairs),
                ("store", "down"): store.demote,
                ("one large", "up"): ceilings[1],
                ("copies", "up"): lambda: _done(tiers, [each[::-1] for each in pairs]),
            }
            if number:
                ways["store", "up"] = partial(store.promote, number - WRITTEN)
            seconds = {name: _seconds(way, plan.device) for name, way in ways.items()}
            seconds["store", "down"] /= WRITTEN
            rounds.append(seconds)
    return {
        "page_bytes": page_bytes,
        "pages": COPY_PAGES,
        "ways": [_figures(rounds[1:], way, direction, batch) for way, direction in rounds[-1]],
    }


def _figures(
    rounds: list[dict[tuple[str, str], float]], way: str, direction: str, size: int
) -> dict[str, Any]:
    return {
        "way": way,
        "direction": direction,
        "gb_s": size / median(each[way, direction] for each in rounds) / 1e9,
        "share_of_one_large": median(
            each["one large", direction] / each[way, direction] for each in rounds
        ),
    }


def _sources(device: str, stack: ExitStack) -> tuple[MemorySource, MemorySource]:
    """Returns the memory of tier 1 and of tier 2, which is registered for a device."""
    if device == "cpu":
        return HostMemory(), HostMemory()
    cuda = stack.enter_context(closing(CudaDevice(torch.device(device).index or 0)))
    return cuda, HostMemory(register=cuda.copier.register)


def _large_copies(device: str, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns one copy of many bytes down and up: of pinned memory, or on the host a memmove."""
    if device == "cpu":
        first, second = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
        one, other = first.data_ptr(), second.data_ptr()
        # The copies keep their sources alive.
        return (
            lambda: ctypes.memmove(other, one, first.nbytes),
            lambda: ctypes.memmove(one, other, second.nbytes),
        )
    near = torch.ones(size, dtype=torch.uint8, device=device)
    pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    return (
        lambda: pinned.copy_(near, non_blocking=True),
        lambda: near.copy_(pinned, non_blocking=True),
    )


def _done(tiers: Tiers, pairs: list[tuple[int, int]]) -> None:
    if any(tiers.begin_all(pairs)()):
        raise RuntimeError("a page was not copied")


def _seconds(way: Callable[[], object], device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    way()
    synchronize(device)
    return time.perf_counter() - begin
