"""The cached prefix of a sequence, pinned."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.errors import StoreError
from kvstore_client.lifecycle.session import Session
from kvstore_client.pages.held_pages import HeldPages, Hold
from kvstore_client.values.kv_cache_groups import GroupPages, pages_of_groups
from kvstore_client.values.page_runs import PageRef, Pages


class Source(HeldPages):
    """A page of another sequence whose first ``token_count`` tokens match this one's.

    Copy it into a page of your own (``Namespace.copy_page``), which you may then
    write from that token on. Call :meth:`release` as soon as the copy is complete. The
    source page itself MUST NOT be written.
    """

    def __init__(self, hold: Hold, page: PageRef, token_count: int) -> None:
        self.hold = hold
        self.page = page
        self.token_count = token_count

    @property
    def pin_id(self) -> int | None:
        """The page's own pin, or None once it is released."""
        return self.hold.pin_ids[0] if self.hold.open else None

    @property
    def holds(self) -> list[Hold]:
        """The page's pin."""
        return [self.hold]


MILLISECOND = 1e-3
# The tiers of pages that were loaded for a match: the store's disk, and the store that hosts
# share, which the protocol counts to tier 3 as well.
DISK_TIER: Final = 3
REMOTE_TIER: Final = 4
NO_GROUPS: Mapping[int, GroupPages] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another open reservation, of any client, that continues a sequence.

    Counts are tokens from the sequence's beginning, in whole pages: ``token_count``
    will have been computed, and ``inserted_token_count`` are inserted, so cached. ``idle``
    is the time in seconds since the last insert, or since the beginning. A hung reservation
    grows old and is reported until its lease expires.
    """

    token_count: int
    inserted_token_count: int
    idle: float

    @classmethod
    def of(
        cls, answer: prefix_cache_pb2.PrefixMatch | prefix_cache_pb2.PeekPrefixResponse
    ) -> Self | None:
        """Returns the prefill of an answer; None if it has none, as from older servers."""
        if not answer.HasField("in_flight"):
            return None
        found = answer.in_flight
        return cls(found.token_count, found.inserted_token_count, found.idle_ms * MILLISECOND)


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The tokens of a sequence's whole pages, as a prefetch found them.

    ``memory_token_count`` are in memory, and the next ``loading_token_count`` are being loaded.
    ``declined_token_count`` more are on the store's disk and are not loaded now, because no slot
    is free or too much is being loaded already. All are zero if the store does not prefetch.
    After a failure of the store too, and ``failure`` is set.
    """

    memory_token_count: int = 0
    loading_token_count: int = 0
    declined_token_count: int = 0
    failure: StoreError | None = None

    @classmethod
    def of(cls, answer: prefix_cache_pb2.PrefetchPrefixResponse) -> "Prefetched":
        """Returns what a store answered."""
        return cls(
            answer.memory_token_count, answer.loading_token_count, answer.declined_token_count
        )


class LoadedPages(NamedTuple):
    """The numbers of a match's last pages that were loaded for it: first disk, then remote."""

    disk: int = 0
    remote: int = 0


NOTHING_LOADED: Final = LoadedPages()


class Match(HeldPages):
    """A matched prefix, whose pages stay unchanged until it is released.

    Use ``pages`` in place, for ``token_count`` tokens. ``source``, if set, is a page to copy:
    it has the tokens that follow within a page. ``next_token`` is set if the whole sequence
    was found. It is the argmax of what follows; once the source is copied, nothing is left to
    compute. ``groups`` has the pages of the groups that were asked for, which end where the
    match ends.

    Use it as a context manager, or call :meth:`release`. Both wait for the
    device first and release the source too. Its pages MUST NOT be written. A miss
    has no pages and no source; ``failure`` is set if the store failed. ``in_flight`` is set
    if another reservation computes more of the sequence. One thread at a time uses it.
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
        groups: Mapping[int, GroupPages] = NO_GROUPS,
        loaded: LoadedPages = NOTHING_LOADED,
    ) -> None:
        """``loaded`` says which of the last pages were loaded for this match."""
        self.pages = Pages() if pages is None else pages
        self.token_count = token_count
        self.failure = failure
        self.source = source
        self.next_token = next_token
        self.in_flight = in_flight
        self.groups = groups
        self.hold = hold
        self._loaded = loaded
        self._page_tiers: list[int] | None = None

    @property
    def page_count(self) -> int:
        """The number of matched pages."""
        return len(self.pages)

    @property
    def page_tiers(self) -> list[int]:
        """The tier that each page came from: 1 or 2 for memory, 3 for the disk, 4 for remote.

        All pages are in memory. Tier 3 means that only the disk had the page as the match was
        asked for, and 4 that only the store had it that hosts share. Older stores name the memory
        instead.
        """
        if self._page_tiers is None:
            disk, remote = self.loaded_pages
            memory = self.pages.tiers[: self.page_count - disk - remote]
            self._page_tiers = memory + [DISK_TIER] * disk + [REMOTE_TIER] * remote
        return self._page_tiers

    @property
    def loaded_pages(self) -> LoadedPages:
        """The numbers of the last pages that the store loaded for this match, by their source."""
        remote = min(self._loaded.remote, self.page_count)
        return LoadedPages(min(self._loaded.disk, self.page_count - remote), remote)

    @property
    def holds(self) -> list[Hold]:
        """The pin of the path and the pin of the source."""
        source = None if self.source is None else self.source.hold
        return [hold for hold in (self.hold, source) if hold is not None]

    @property
    def pin_id(self) -> int | None:
        """The pin's id, or None for a miss or once it is released."""
        return self.hold.pin_ids[0] if self.hold is not None and self.hold.open else None


def match_of(
    session: Session,
    pin_ids: tuple[int, int],
    answer: prefix_cache_pb2.PrefixMatch,
    page_tokens: int,
) -> Match:
    """Returns the match of an answer to a call under the ids of a pin and of a source's pin.

    Call it only within ``Session.request``. Raises ``StoreUnavailable`` if a page is not mapped.
    """
    pin_id, source_pin_id = pin_ids
    pages = session.require_mapped(Pages(answer.runs))
    in_flight = InFlight.of(answer)
    if not pages and not answer.HasField("source"):
        return Match(in_flight=in_flight)  # neither a miss nor a request that yields has a pin
    groups = pages_of_groups(answer) if answer.groups else NO_GROUPS
    for each in groups.values():
        session.require_mapped(each.pages)
    source = None
    if answer.HasField("source"):
        copied = session.require_mapped(Pages([answer.source.page]))
        [page] = copied
        hold = Hold(session, pin_ids=(source_pin_id,), pages=copied)
        source = Source(hold, page, answer.source.valid_token_count)
    every = pages
    if groups:
        named = [each.pages.named for each in groups.values()]
        every = Pages([*pages.named, *chain.from_iterable(named)])
    return Match(
        Hold(session, pin_ids=(pin_id,), pages=every),
        pages,
        answer.matched_token_count,
        source=source,
        next_token=answer.next_token if answer.HasField("next_token") else None,
        in_flight=in_flight,
        groups=groups,
        loaded=_loaded_pages(answer, page_tokens),
    )


def _loaded_pages(answer: prefix_cache_pb2.PrefixMatch, page_tokens: int) -> LoadedPages:
    """Returns how many pages of an answer the store loaded, and from where."""
    count = answer.tier_3_loaded_token_count // page_tokens
    remote = min(answer.remote_loaded_token_count // page_tokens, count)
    return LoadedPages(count - remote, remote)
