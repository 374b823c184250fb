"""A huge request that is refused does not allocate memory for the numbers in it."""

import sys
import tracemalloc
from collections.abc import Callable

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld, make_layout
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits, Quotas
from kvstore.core.values.requests import MatchOptions, ReservationRequest, Sequence
from kvstore.errors import KVStoreError
from kvstore.rpc.wire import convert
from kvstore.v1 import prefix_cache_pb2, types_pb2

HUGE = 2**32 - 1
# Bytes: an error with its metadata and traceback, and what Python keeps of its own.
SMALL = 64 << 10
# Seconds for which a thread that is ready lets the one that measures go on.
ALONE = 600.0
TRIES = 10


def huge_layout() -> types_pb2.PageLayout:
    """Returns a layout whose numbers are as large as a message can hold."""
    paged = types_pb2.PagedLayout(
        layer_count=HUGE, kv_head_count=HUGE, head_dim=HUGE, dtype="float32"
    )
    return types_pb2.PageLayout(page_tokens=HUGE, page_bytes=2**64 - 1, paged=paged)


def attempts(world: CoreWorld) -> dict[str, Callable[[], object]]:
    """Returns calls with a huge number in them, by the part that is huge."""
    cache, caller, now = world.cache, world.worker.caller, world.now
    longest = Limits().max_tokens // world.page_tokens
    batch = [ReservationRequest(k + 1, 0, longest) for k in range(1000)]
    ids = range(10, 11 + Limits().max_batch_size)
    reservations = prefix_cache_pb2.ReservePagesRequest(
        reservations=[prefix_cache_pb2.ReservationRequest()] * 2000
    )
    return {
        "pages of a batch": lambda: cache.reserve(caller, NAMESPACE_ID, batch, now),
        "pages of a sequence": lambda: cache.acquire(
            caller,
            NAMESPACE_ID,
            Sequence(bytes(4)),
            MatchOptions(1),
            reservation_id=2,
            total_page_count=HUGE,
            now=now,
        ),
        "ids of a batch": lambda: cache.release(caller, ids, now),
        "entries of a batch": lambda: convert.reservations_of(reservations, Limits()),
        "page": lambda: cache.open_namespace(
            caller, NamespaceIdentity(b"huge"), make_layout(page_bytes=2**60), b"x", now
        ),
        "layout": lambda: convert.layout_of(huge_layout(), Limits()),
        "checksums": lambda: cache.insert(
            caller, 1, Sequence(bytes(8)), now, checksums=range(1 << 20)
        ),
    }


def memory_taken(what: str) -> tuple[int, int]:
    """Makes a call twice on a new cache. Returns the peak and the remaining allocation in bytes."""
    world = CoreWorld(quotas=Quotas(tier1_bytes=1 << 20))
    world.worker.reserve(1, 1)
    attempt = attempts(world)[what]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(ALONE)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2):
            with pytest.raises(KVStoreError):
                attempt()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        sys.setswitchinterval(interval)
    assert world.states() == {"FREE": 7, "RESERVED": 1}
    world.laws.check()
    return peak - before, after - before


@pytest.mark.parametrize("what", attempts(CoreWorld()))
def test_a_refusal_takes_no_memory(what: str) -> None:
    """A refusal allocates less than 64 KiB, as any error does, and keeps nothing."""
    # Another thread that runs meanwhile is measured too, so the test has several tries.
    tries = (memory_taken(what) for _ in range(TRIES))
    assert any(max(taken) < SMALL for taken in tries)
