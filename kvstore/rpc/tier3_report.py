"""What tier 3 has, as the message of statistics."""

from kvstore.service.disk import DiskState
from kvstore.service.tier3 import Tier3Use
from kvstore.v1 import store_pb2

STATES = {
    DiskState.ABSENT: store_pb2.Tier3Stats.STATE_ABSENT,
    DiskState.OPEN: store_pb2.Tier3Stats.STATE_OPEN,
    DiskState.FAILED: store_pb2.Tier3Stats.STATE_FAILED,
}


def tier_3_message(use: Tier3Use, *, whole: bool) -> store_pb2.Tier3Stats:
    """Return what tier 3 has; its state alone unless ``whole``, for all tenants share it."""
    disk = use.disk
    message = store_pb2.Tier3Stats(state=STATES[disk.state])
    if not whole:
        return message
    counters = disk.counters
    message.size_bytes = disk.size_bytes
    message.page_count = disk.page_count
    message.slot_count = disk.slot_count
    message.written_page_count = counters.written_pages
    message.refused_page_count = counters.refused_writes
    message.read_page_count = counters.read_pages
    message.corrupt_page_count = counters.corrupt_pages
    message.unreadable_page_count = counters.unreadable_pages
    message.evicted_page_count = counters.evicted_pages
    message.removed_page_count = counters.removed_pages
    message.bytes_per_second = use.bandwidth
    message.declined_load_count = use.declined_count
    message.recovered_page_count = counters.recovered_pages
    message.torn_slot_count = counters.torn_slots
    return message
