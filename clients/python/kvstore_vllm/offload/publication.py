"""The calls that reserve spare slots, and that publish the pages in them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvstore_client import PageRef, Reservation, StoreBudget
from kvstore_client.errors import PoolExhausted, StoreError
from kvstore_vllm.engine.store_access import StoreAccess
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.reserve import Spare, SpareBatch
from kvstore_vllm.scheduler.store_work import SAVE_BUDGET, TRIES_FOR_ROOM, StoreWork

_logger = logging.getLogger(__name__)


class PageInSlot(Protocol):
    """A page, by its index on the path, in a spare slot."""

    @property
    def page(self) -> int:
        """The page's index."""

    @property
    def spare(self) -> Spare:
        """Its slot."""


class PublishedRun(NamedTuple):
    """The result for some pages: the path is in the store up to ``end_page``.

    ``used_pages`` are those whose slots are used up.
    """

    end_page: int
    used_pages: frozenset[int]
    own_page_count: int = 0


@dataclass(eq=False, slots=True)
class SpareReservation:
    """Spare slots of a plain reservation."""

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
    """Reserves and publishes for one engine. Any thread may use it."""

    def __init__(self, access: StoreAccess, work: StoreWork, page_tokens: int) -> None:
        self._access = access
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
                return None
            return SpareReservation(found)
        return None

    def publish(
        self, key: RequestKey, token_ids: Sequence[int], start: int, pages: Sequence[PageInSlot]
    ) -> PublishedRun:
        """Publishes consecutive pages from ``start`` on, the last of ``token_ids``.

        Publishes nothing if the store lacks a page before ``start``.
        """
        end = start + len(pages)
        acquired = self._work.acquire(key, token_ids, yielding=False)
        if acquired is None:
            return PublishedRun(0, frozenset())
        with acquired:
            first = acquired.match.page_count
            if first >= end:
                return PublishedRun(end, frozenset())
            reservation = acquired.reservation
            if reservation is None or first < start or first + reservation.page_count < end:
                return PublishedRun(first, frozenset())
            session = reservation.hold.session
            for target, each in zip(reservation.pages, pages[first - start :], strict=True):
                batch = each.spare.batch.slots
                assert isinstance(batch, SpareReservation)
                if batch.reservation.hold.session is not session:
                    return PublishedRun(first, frozenset())
                memory = self._access.memory
                memory.page(target)[:] = memory.page(each.spare.page)
            if not self._work.insert(key, token_ids, acquired, first, end):
                return PublishedRun(first, frozenset())
            return PublishedRun(end, frozenset(), end - first)
