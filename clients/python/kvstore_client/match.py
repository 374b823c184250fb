"""The cached prefix of a sequence, pinned."""

from dataclasses import dataclass
from typing import Self

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.errors import StoreError
from kvstore_client.hold import HeldPages, Hold
from kvstore_client.pages import PageRef, Pages


class Source(HeldPages):
    """A page of another sequence, whose first ``token_count`` tokens are this one's.

    Copy it into a page of your own (``Namespace.copy_page``), which may then be
    written from that token on, and :meth:`release` it as soon as the copy
    completed. It MUST NOT be written.
    """

    def __init__(self, hold: Hold, page: PageRef, token_count: int) -> None:
        self.hold = hold
        self.page = page
        self.token_count = token_count

    @property
    def pin_id(self) -> int | None:
        """The page's own pin, or None once it was released."""
        return self.hold.pin_ids[0] if self.hold.open else None

    @property
    def holds(self) -> list[Hold]:
        """The page's pin."""
        return [self.hold]


MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another open reservation, of this client or another, that goes on with a sequence.

    All counts are tokens from the sequence's beginning, in whole pages: ``token_count``
    will have been computed, ``inserted_token_count`` are inserted, which is as much as is
    cached of it. ``idle`` is the time since it last inserted something, or began, in
    seconds: what is hung grows old, and is reported until its lease expires.
    """

    token_count: int
    inserted_token_count: int
    idle: float

    @classmethod
    def of(
        cls, answer: prefix_cache_pb2.PrefixMatch | prefix_cache_pb2.PeekPrefixResponse
    ) -> Self | None:
        """Returns what an answer tells; None where it tells of nothing, as older servers do."""
        if not answer.HasField("in_flight"):
            return None
        found = answer.in_flight
        return cls(found.token_count, found.inserted_token_count, found.idle_ms * MILLISECOND)


class Match(HeldPages):
    """A matched prefix, whose pages stay as they are until it is released.

    ``pages`` are used in place, for ``token_count`` tokens. ``source``, if there
    is one, has the tokens that follow them within a page: a page to copy from.
    ``next_token`` is there where the whole sequence was found, and is the argmax
    of what follows it: with the source copied nothing is left to run.

    Use it as a context manager, or call :meth:`release`; both wait for the
    device first and release the source too. Its pages MUST NOT be written. A miss
    has no pages and no source, and ``failure`` where it came of a failure of the
    store. ``in_flight`` is there where somebody is computing more of the sequence. One
    thread at a time uses it.
    """

    def __init__(
        self,
        hold: Hold | None = None,
        pages: Pages | None = None,
        token_count: int = 0,
        failure: StoreError | None = None,
        *,
        source: Source | None = None,
        next_token: int | None = None,
        in_flight: InFlight | None = None,
    ) -> None:
        self.pages = Pages() if pages is None else pages
        self.token_count = token_count
        self.failure = failure
        self.source = source
        self.next_token = next_token
        self.in_flight = in_flight
        self.hold = hold

    @property
    def page_count(self) -> int:
        """Number of matched pages."""
        return len(self.pages)

    @property
    def holds(self) -> list[Hold]:
        """What is held: the path's pin and the source's."""
        source = None if self.source is None else self.source.hold
        return [hold for hold in (self.hold, source) if hold is not None]

    @property
    def pin_id(self) -> int | None:
        """The pin, or None: a miss holds nothing, and neither does what was released."""
        return self.hold.pin_ids[0] if self.hold is not None and self.hold.open else None
