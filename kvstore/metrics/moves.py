"""Metrics of moves between tiers, disk reads and disk writes."""

from typing import Final

from kvstore.metrics.metric import Sheet, counter, gauge
from kvstore.metrics.view import View
from kvstore.service.tiers.disk import DiskState

BETWEEN: Final = "source target"

MOVED: Final = counter(
    "kvstore_moved_pages_total",
    BETWEEN,
    "Pages copied from one memory tier to another, by the tiers' numbers.",
    "From 1 to 2 many times those from 2 to 1: `--tier2-write through-selective`; tiers.md.",
)
MOVED_BYTES: Final = counter(
    "kvstore_moved_bytes_total",
    BETWEEN,
    "Their bytes. Over the seconds: the copier's bandwidth.",
    "Bandwidth far below the device's: see what else uses the bus or the memory.",
)
MOVE_SECONDS: Final = counter(
    "kvstore_move_seconds_total",
    BETWEEN,
    "Seconds that copies were under way.",
    "Grows by nearly a second a second: the copier is busy all the time; tiers.md.",
)
FAILED_MOVES: Final = counter(
    "kvstore_failed_moves_total",
    BETWEEN,
    "Pages whose copy failed, or whose extent was given back meanwhile.",
    "Grows: `move_failed` in the log says what the device said.",
)
LOADED: Final = counter(
    "kvstore_loaded_pages_total",
    "",
    "Pages brought from tier 3 for a match.",
    "Zero with a tier 3 that has pages: loads are declined, or nobody asks for them again.",
)
DECLINED: Final = counter(
    "kvstore_tier3_declined_loads_total",
    "",
    "Loads not begun since computing was sooner done.",
    "Most of them: the disk is slower than prefill; a faster one, or none.",
)
UP: Final = gauge(
    "kvstore_tier3_up",
    "",
    "1 while tier 3 takes and gives pages, 0 when its disk failed. Of tier 3 nothing is shown "
    "where there is none.",
    "0: `slab_failed` or `tier3_removal_failed` in the log; see the disk, then restart.",
)
DISK_PAGES: Final = gauge(
    "kvstore_tier3_pages",
    "",
    "Pages in tier 3.",
    "At the slots, with evictions: it is full; that is its purpose.",
)
DISK_SLOTS: Final = gauge(
    "kvstore_tier3_slots",
    "",
    "Room for pages of the sizes that it has met.",
    "Smaller than the memory tiers: it keeps little beyond them.",
)
BANDWIDTH: Final = gauge(
    "kvstore_tier3_read_bytes_per_second",
    "",
    "Bytes a second that loads came with lately; 0 before the first.",
    "Falls: other programs use the disk, or it wears.",
)
WRITTEN: Final = counter(
    "kvstore_tier3_written_pages_total",
    "",
    "Pages written.",
    "Many times the loaded: `--tier3-write second-touch`.",
)
WRITTEN_BYTES: Final = counter(
    "kvstore_tier3_written_bytes_total",
    "",
    "Their bytes.",
    "More a day than the drive is rated for: `--tier3-write second-touch`.",
)
READ: Final = counter(
    "kvstore_tier3_read_pages_total",
    "",
    "Pages read whole.",
    "More than the loaded: loads that nobody waited for to the end.",
)
READ_BYTES: Final = counter(
    "kvstore_tier3_read_bytes_total",
    "",
    "Their bytes.",
    "At the drive's limit: loads stand in line.",
)
REFUSED: Final = counter(
    "kvstore_tier3_refused_writes_total",
    "",
    "Writes refused since too much was waiting.",
    "Grows: the disk cannot keep up with what is inserted.",
)
BAD: Final = counter(
    "kvstore_tier3_bad_pages_total",
    "kind",
    "Pages that were not what was written (`corrupt`), that the disk did not give "
    "(`unreadable`), or whose header was not whole at the start (`torn`).",
    "`corrupt` or `unreadable` grow: replace the disk. `torn`, after a crash: some are normal.",
)
GONE: Final = counter(
    "kvstore_tier3_gone_pages_total",
    "reason",
    "Pages that left tier 3: for want of room (`evicted`), or by a removal (`removed`).",
    "`evicted` nearly as fast as written: a larger file; sizing.md.",
)
RECOVERED: Final = counter(
    "kvstore_tier3_recovered_pages_total",
    "",
    "Pages found at the start.",
    "Zero after a restart: another file, or it could not be read.",
)
OF_DISK: Final = (
    *(UP, DISK_PAGES, DISK_SLOTS, BANDWIDTH, DECLINED, WRITTEN, WRITTEN_BYTES),
    *(READ, READ_BYTES, REFUSED, BAD, GONE, RECOVERED),
)
METRICS: Final = (MOVED, MOVED_BYTES, MOVE_SECONDS, FAILED_MOVES, LOADED, *OF_DISK)


def write(view: View, sheet: Sheet) -> None:
    """Adds this module's metrics to the sheet."""
    for (source, target), counts in view.moves.items():
        by = str(source), str(target)
        sheet.add(MOVED, counts.pages, *by)
        sheet.add(MOVED_BYTES, counts.bytes, *by)
        sheet.add(MOVE_SECONDS, counts.seconds, *by)
        sheet.add(FAILED_MOVES, counts.failed_pages, *by)
    sheet.add(LOADED, view.stats.counters.loaded_page_count)
    if view.tier3.disk.state is not DiskState.ABSENT:
        _write_disk(view, sheet)


def _write_disk(view: View, sheet: Sheet) -> None:
    disk, counters = view.tier3.disk, view.tier3.disk.counters
    for metric, value, *labels in (
        (UP, disk.state is DiskState.OPEN),
        (DISK_PAGES, disk.page_count),
        (DISK_SLOTS, disk.slot_count),
        (BANDWIDTH, view.tier3.bandwidth),
        (DECLINED, view.tier3.declined_count),
        (WRITTEN, counters.written_pages),
        (WRITTEN_BYTES, counters.written_bytes),
        (READ, counters.read_pages),
        (READ_BYTES, counters.read_bytes),
        (REFUSED, counters.refused_writes),
        (BAD, counters.corrupt_pages, "corrupt"),
        (BAD, counters.unreadable_pages, "unreadable"),
        (BAD, counters.torn_slots, "torn"),
        (GONE, counters.evicted_pages, "evicted"),
        (GONE, counters.removed_pages, "removed"),
        (RECOVERED, counters.recovered_pages),
    ):
        sheet.add(metric, value, *labels)
