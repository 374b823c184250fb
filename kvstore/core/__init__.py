"""The pure core: the standard library only, single-threaded, with time as an argument.

This is its face: the cache, its limits, and the requests and answers of its verbs.
"""

from kvstore.core.cache import PrefixCache
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.core.values.requests import (
    Caller,
    ExpectedReuse,
    Grant,
    GroupInsert,
    GroupWindow,
    Identity,
    InFlight,
    Inserted,
    Match,
    MatchOptions,
    NamedPinRequest,
    Peeked,
    Prefetched,
    Removed,
    ReservationRequest,
    ReuseHint,
    Sequence,
    SlotMoves,
    Source,
)

__all__ = [
    "Caller",
    "ExpectedReuse",
    "Grant",
    "GroupInsert",
    "GroupWindow",
    "Identity",
    "InFlight",
    "Inserted",
    "Limits",
    "Match",
    "MatchOptions",
    "NamedPinRequest",
    "NamespaceIdentity",
    "PageLayout",
    "Peeked",
    "Prefetched",
    "PrefixCache",
    "QuotaTable",
    "Quotas",
    "Removed",
    "ReservationRequest",
    "ReuseHint",
    "Sequence",
    "SlotMoves",
    "Source",
]
