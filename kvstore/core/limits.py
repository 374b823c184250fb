"""Limits as data: what GetCapabilities answers and core enforces."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of everything that a client names. Times are in seconds."""

    # 2**20 tokens are 4 MiB on the wire: the longest contexts of the field, and a
    # quarter of the message limit.
    max_tokens: int = 1 << 20
    max_batch_size: int = 1024
    max_message_bytes: int = 16 << 20
    # Of a request without token ids, and of a frame from a client. Sixteen megabytes of
    # empty entries would take a hundred times as much memory once parsed.
    max_short_message_bytes: int = 64 << 10
    max_page_bytes: int = 1 << 30
    max_page_tokens: int = 1 << 16
    max_name_bytes: int = 256
    max_digest_bytes: int = 64
    max_salt_bytes: int = 256
    max_features: int = 64
    max_namespaces: int = 10_000
    max_holds_per_lease: int = 100_000
    # Tokens of one tenant's prefills under way: 160 of 100,000 tokens, or 8,000 of 2,000.
    # What comes when they are so many is computed all the same, and nobody is told.
    max_announced_bytes: int = 64 << 20
    max_processes_per_lease: int = 64
    min_ttl: float = 0.2
    default_ttl: float = 10.0
    max_ttl: float = 300.0
    max_deadline: float = 60.0
    # Of a call that watches events, which changes nothing and so may be late. One whose client
    # hangs, or whose host is gone without a word, takes a place for as long at most.
    max_watch: float = 3600.0
    # Of a tenant, and of all; each has a thread that waits.
    max_watchers: int = 8
    max_watchers_in_all: int = 64
    # That wait for one watcher, at some 200 bytes each; and that are remembered for the next one.
    max_waiting_events: int = 4096
    max_remembered_events: int = 1024
    # Longer than the largest deadline, so that no call can outlive the tombstone
    # that its undoing left.
    tombstone_ttl: float = 120.0
    # Of one tenant; beyond that the oldest go. What 2,000 matches a second leave in that
    # time, at some 250 bytes each.
    max_tombstones: int = 250_000
