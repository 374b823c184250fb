"""The calls that reserve spare slots, and that publish the pages in them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore_client import PageRef, Reservation, StoreBudget
from kvstore_client.errors import PoolExhausted, StoreError
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.lookups import GroupPage
from kvstore_vllm.offload.reserve import Spare, SpareBatch
from kvstore_vllm.scheduler.store_work import SAVE_BUDGET, TRIES_FOR_ROOM, StoreWork

_logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """A page in a spare slot, with vLLM's key for it."""

    key: bytes
    page: GroupPage
    spare: Spare


class PublishedPages(NamedTuple):
    """The result for some pages: the store has the path up to ``path_end``.

    ``used`` are the slots that are used up. ``own_page_count`` are the pages of the path that
    nobody else had published.
    """

    path_end: int
    used: frozenset[Spare] = frozenset()
    own_page_count: int = 0


@dataclass(eq=False, slots=True)
class SlotsOfCall:
    """The spare slots of one call."""

    reservation: Reservation

    @property
    def usable(self) -> bool:
        """False once the session ended."""
        return self.reservation.hold.session.ended is None

    def pages(self) -> list[tuple[int, PageRef]]:
        """Returns the offset and the place of each slot."""
        return list(enumerate(self.reservation.pages))

    def abort(self) -> None:
        """Gives the slots back."""
        self.reservation.abort()


class Publication:
    """Reserves and publishes for one engine. One thread publishes; any thread may reserve.

    A page is published in another slot than it was written to, by a copy on the host.
    """

    def __init__(self, work: StoreWork, page_tokens: int) -> None:
        self._work = work
        self._page_tokens = page_tokens

    def reserve(self, key: RequestKey, count: int) -> SpareBatch | None:
        """Reserves ``count`` spare slots in a key's namespace, or fewer; None if there are none."""
        namespace = self._work.open_namespace(key)
        if namespace is None or isinstance(namespace, StoreError):
            return None
        budget = StoreBudget(SAVE_BUDGET)
        for _ in range(TRIES_FOR_ROOM):
            if not count:
                break
            try:
                found = namespace.reserve(start_page=0, page_count=count, budget=budget)
            except PoolExhausted:
                count //= 2
                continue
            except StoreError as error:
                _logger.debug("slots_not_reserved", extra={"reason": str(error)})
                break
            return SlotsOfCall(found)
        return None

    def publish(
        self, key: RequestKey, token_ids: Sequence[int], pages: Sequence[Written]
    ) -> PublishedPages:
        """Publishes consecutive pages of the path.

        ``token_ids`` end with the last of the pages. Publishes nothing if the store lacks a page
        of the path before the first.
        """
        namespace = self._work.open_namespace(key)
        acquired = self._work.acquire(key, token_ids, yielding=False)
        if acquired is None or namespace is None or isinstance(namespace, StoreError):
            return PublishedPages(0)
        with acquired:
            start, end = pages[0].page.index, pages[-1].page.index + 1
            first = acquired.match.page_count
            if first >= end:
                return PublishedPages(end)
            reservation = acquired.reservation
            if reservation is None or first < start or first + reservation.page_count < end:
                return PublishedPages(first)
            session = reservation.hold.session
            for target, each in zip(reservation.pages, pages[first - start :], strict=True):
                slots = each.spare.batch.slots
                assert isinstance(slots, SlotsOfCall)
                if slots.reservation.hold.session is not session:
                    return PublishedPages(first)
                namespace.page(target)[:] = namespace.page(each.spare.page)
            if not self._work.insert(key, token_ids, acquired, first, end):
                return PublishedPages(first)
            return PublishedPages(end, frozenset(), end - first)
