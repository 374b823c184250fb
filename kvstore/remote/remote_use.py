"""Counters and state of a remote store, for metrics and statistics."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from kvstore.storage.page_store import StoreState

Reason = TypeVar("Reason", bound=StrEnum)


class LookAnswer(StrEnum):
    """The outcome of a look."""

    HIT = "hit"
    """The engine has every page that was asked for."""
    PARTIAL = "partial"
    """It has some leading pages, or the deadline came before the others."""
    MISS = "miss"
    """It does not have the first page."""
    SKIPPED = "skipped"
    """The engine was not asked: it is away, no place was free, or a look was not worth it."""
    FAILED = "failed"
    """The engine did not answer by the deadline, or with an error."""


class Refusal(StrEnum):
    """The reason for which a page was not written."""

    QUEUE = "queue"
    """The queue, or the namespace's half of it, was full."""
    AWAY = "away"
    """The engine or the page's node is away, or failed during the write."""
    OFF = "off"
    """Writes are off: by a setting, or since this host found many corrupt pages."""
    OLD = "old"
    """The page waited for longer than ``RemoteSettings.write_seconds``."""
    REVISION = "revision"
    """Pages of the namespace were removed since the page was submitted, or the removal is not
    acknowledged."""
    ENGINE = "engine"
    """The engine refused this value alone: it is full, or a replica."""
    CHANGED = "changed"
    """The page's bytes differ from the checksum that its writer gave."""


class Rejection(StrEnum):
    """The reason for which a value was not the page that was read."""

    FORMAT = "format"
    """Another version, or another length."""
    SECRET = "secret"  # noqa: S105  # the name of a reason
    """Sealed under another secret."""
    SEAL = "seal"
    """Another page's value, or changed bytes."""
    CHECKSUM = "checksum"
    """The page had changed before it was sealed."""


def no_counts(reasons: type[Reason]) -> Mapping[Reason, int]:
    """Returns zero for each reason."""
    return MappingProxyType(dict.fromkeys(reasons, 0))


class RemoteUse(NamedTuple):
    """A remote store at one moment. The counts only grow, since it was opened.

    ``why`` is the text of the last error that made the engine be away, empty before the first.
    ``latency`` is the mean of late looks in seconds, whatever they found. ``clock_skew`` is the
    engine's clock less this host's, in seconds.
    """

    state: StoreState
    why: str = ""
    looks: Mapping[LookAnswer, int] = no_counts(LookAnswer)
    look_seconds: float = 0.0
    read_pages: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    written_pages: int = 0
    written_bytes: int = 0
    refused_writes: Mapping[Refusal, int] = no_counts(Refusal)
    rejected_pages: Mapping[Rejection, int] = no_counts(Rejection)
    breaker_opened: int = 0
    revisions_lost: int = 0
    """Control values that were gone, or older than one that this host had seen."""
    revisions_forged: int = 0
    """Control values that were not made under the secret."""
    removals_pending: int = 0
    """Namespaces whose removal the engine has not acknowledged."""
    queue_bytes: int = 0
    """Pages that wait to be written."""
    clock_skew: float = 0.0
    latency: float = 0.0
    node_count: int = 1
    """Nodes of the engine, as far as it is known: 1 for a single server."""
    nodes_away: tuple[str, ...] = ()
    """Addresses of the nodes that do not answer, whose pages are misses."""
    writes_stopped: bool = False
    """This host writes no more pages since it found many corrupt ones: an alarm."""
