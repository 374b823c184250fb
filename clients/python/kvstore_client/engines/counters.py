"""The connector's counts, for the log and for Prometheus."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from kvstore_client.pages.match import DISK_TIER, REMOTE_TIER

MICROSECONDS: Final = 1e6
BYTES_OF_A_MEGABYTE: Final = 1e6


class Counted(NamedTuple):
    """One count of the halves, and its metric, with a label's value or none."""

    key: str
    metric: str
    label: str = ""
    scale: float = 1


# Metric -> its help text, and its label if it has one. Prometheus adds `_total`.
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "kvstore_lookups": (
        "Requests that were looked up, by whether all of their whole pages were there.",
        "outcome",
    ),
    "kvstore_asked_tokens": ("Tokens of the requests that were looked up.", ""),
    "kvstore_matched_tokens": ("Tokens of whole pages that the store had.", ""),
    "kvstore_loaded_tokens": (
        "Tokens whose KV was copied from the store, by the tier: 3 is the disk, remote is shared.",
        "tier",
    ),
    "kvstore_prefetched_tokens": (
        "Tokens that the store was loading as it answered a prefetch, some of them several times.",
        "",
    ),
    "kvstore_stored_tokens": ("Tokens whose KV this engine put into the store.", ""),
    "kvstore_failed_loads": ("Loads that failed, whose tokens were computed.", ""),
    "kvstore_failed_saves": ("Copies and inserts of pages that failed.", ""),
    "kvstore_ignored_hints": ("Requests whose hint was malformed, and ignored.", ""),
    "kvstore_fault_loads": ("Loads that were made to fail, in tests.", ""),
    "kvstore_loaded_bytes": ("Bytes copied from the store, at all ranks.", ""),
    "kvstore_stored_bytes": ("Bytes copied to the store, at all ranks.", ""),
    "kvstore_load_seconds": ("Time of copying from the store, summed over ranks.", ""),
    "kvstore_store_seconds": ("Time of copying to the store, summed over ranks.", ""),
}
# States as of the engine's last step: the count for yes and the count for no.
ATTACHED: Final = "kvstore_attached"
IS_ATTACHED: Final = "attached"
IS_NOT_ATTACHED: Final = "not_attached"
GAUGES: Final[Mapping[str, str]] = {
    ATTACHED: "1 while the store answers and every rank reaches its memory, as of the last step.",
}
OUTCOMES: Final = ("full", "partial", "miss", "timeout", "unavailable")
# The values of the label for the tiers of a match's pages: memory, the disk, and remote.
TIERS: Final[Mapping[int, str]] = {1: "1", 2: "2", DISK_TIER: "3", REMOTE_TIER: "remote"}
COUNTED: Final = (
    *(Counted(f"lookups_{outcome}", "kvstore_lookups", outcome) for outcome in OUTCOMES),
    Counted("asked_tokens", "kvstore_asked_tokens"),
    Counted("matched_tokens", "kvstore_matched_tokens"),
    *(
        Counted(f"loaded_tokens_{tier}", "kvstore_loaded_tokens", label)
        for tier, label in TIERS.items()
    ),
    Counted("prefetched_tokens", "kvstore_prefetched_tokens"),
    Counted("stored_tokens", "kvstore_stored_tokens"),
    Counted("loads_failed", "kvstore_failed_loads"),
    Counted("saves_failed", "kvstore_failed_saves"),
    Counted("inserts_failed", "kvstore_failed_saves"),
    Counted("ignored_hints", "kvstore_ignored_hints"),
    Counted("load_faults", "kvstore_fault_loads"),
    Counted("load_bytes", "kvstore_loaded_bytes"),
    Counted("save_bytes", "kvstore_stored_bytes"),
    Counted("load_microseconds", "kvstore_load_seconds", "", MICROSECONDS),
    Counted("save_microseconds", "kvstore_store_seconds", "", MICROSECONDS),
)


def summed(*counts: Mapping[str, int]) -> dict[str, int]:
    """Returns the counts of several ranks or steps as one."""
    total: dict[str, int] = {}
    for each in counts:
        for key, value in each.items():
            total[key] = total.get(key, 0) + value
    return total


def count_loaded(counts: "Counter[str]", tiers: Mapping[int, int], page_tokens: int) -> None:
    """Counts the tokens of loaded pages; ``tiers`` has the number of pages of each tier."""
    for tier, page_count in tiers.items():
        counts[f"loaded_tokens_{tier}"] += page_count * page_tokens


def note_attached(counts: "Counter[str]", *, attached: bool) -> None:
    """Notes for Prometheus whether the engine now uses the store."""
    now, before = (IS_ATTACHED, IS_NOT_ATTACHED) if attached else (IS_NOT_ATTACHED, IS_ATTACHED)
    counts[now] = 1
    del counts[before]


def take_counts(counts: "Counter[str]") -> dict[str, int]:
    """Returns the counts so far, and resets them."""
    taken = dict(counts)
    counts.subtract(taken)
    for key in [key for key, value in counts.items() if not value]:
        del counts[key]
    return taken


def in_words(counts: Mapping[str, int]) -> dict[str, int | float]:
    """Returns the fields of a log line about an interval; counts of zero are left out."""
    lookups = sum(counts.get(f"lookups_{outcome}", 0) for outcome in OUTCOMES)
    words: dict[str, int | float] = {"kvstore lookups": lookups} if lookups else {}
    words |= {outcome: counts.get(f"lookups_{outcome}", 0) for outcome in OUTCOMES}
    for what in ("asked", "matched", "stored"):
        words[f"{what} tokens"] = counts.get(f"{what}_tokens", 0)
    words["loaded tokens"] = sum(counts.get(f"loaded_tokens_{tier}", 0) for tier in TIERS)
    words["of them from disk"] = counts.get(f"loaded_tokens_{DISK_TIER}", 0)
    words["of them from remote"] = counts.get(f"loaded_tokens_{REMOTE_TIER}", 0)
    words["prefetched tokens"] = counts.get("prefetched_tokens", 0)
    for verb, done in (("load", "loaded"), ("save", "stored")):
        copied, time = counts.get(f"{verb}_bytes", 0), counts.get(f"{verb}_microseconds", 0)
        words[f"{done} MB"] = round(copied / BYTES_OF_A_MEGABYTE, 1)
        # Bytes a microsecond are megabytes a second.
        words[f"{done} MB/s"] = round(copied / time) if time else 0
    words["failed loads"] = counts.get("loads_failed", 0)
    words["failed saves"] = counts.get("saves_failed", 0) + counts.get("inserts_failed", 0)
    words["attached"] = counts.get(IS_ATTACHED, 0)
    words["not attached"] = counts.get(IS_NOT_ATTACHED, 0)
    return {name: value for name, value in words.items() if value}
