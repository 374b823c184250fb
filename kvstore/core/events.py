"""What happened in the cache, as whoever watches is told of it. Never a token.

``at`` is when, by the owner's clock, in seconds: as of the latest time that the core was told.
"""

from enum import Enum
from typing import NamedTuple, TypeAlias


class PagesChange(Enum):
    """What happened to pages."""

    INSERTED = 1
    REMOVED = 2
    # Beside a copy in another tier.
    COPIED = 3
    COPIES_REMOVED = 4


class Cause(Enum):
    """Why something happened to pages."""

    INSERTED = 1
    LOADED = 2
    MOVED = 3
    EVICTED = 4
    REMOVED = 5
    SUPERSEDED = 6
    CORRUPT = 7
    RETIRED = 8
    NAMESPACE_DELETED = 9


class LeaseStep(Enum):
    """What happened to a lease."""

    GRANTED = 1
    EXPIRED = 2
    ENDED = 3


class NamespaceStep(Enum):
    """What happened to a namespace."""

    OPENED = 1
    DELETED = 2


class PagesEvent(NamedTuple):
    """Pages of one path from ``start_page`` on.

    ``path_digest`` is of the path through the last of them, 128 bits, or empty where nobody
    watched.
    """

    at: float
    tenant: str
    namespace_id: bytes
    change: PagesChange
    cause: Cause
    start_page: int
    page_count: int
    tier: int
    path_digest: bytes


class LeaseEvent(NamedTuple):
    """A step in a lease's life, which is of no namespace."""

    at: float
    tenant: str
    namespace_id: bytes
    step: LeaseStep
    lease_id: bytes
    display_name: str


class NamespaceEvent(NamedTuple):
    """A step in a namespace's life."""

    at: float
    tenant: str
    namespace_id: bytes
    step: NamespaceStep


Event: TypeAlias = PagesEvent | LeaseEvent | NamespaceEvent
