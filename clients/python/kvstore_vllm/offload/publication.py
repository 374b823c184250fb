"""The calls that reserve spare slots, and that publish the pages in them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kvstore_client import (
    GroupInsert,
    Match,
    PageRef,
    Reservation,
    ReuseHint,
    SpareSlots,
    StoreBudget,
)
from kvstore_client.errors import PoolExhausted, StoreError
from kvstore_client.packed_tokens import TOKEN_BYTES
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import GroupPage
from kvstore_vllm.offload.reserve import Spare, SpareBatch
from kvstore_vllm.scheduler.store_work import ONE_MORE, SAVE_BUDGET, TRIES_FOR_ROOM, StoreWork

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

    spare: SpareSlots
    offsets: Sequence[int]

    @property
    def usable(self) -> bool:
        """False once the session ended."""
        return self.spare.session.ended is None

    def pages(self) -> list[tuple[int, PageRef]]:
        """Returns the offset and the place of each slot."""
        return [(offset, self.spare.page(offset)) for offset in self.offsets]

    def abort(self) -> None:
        """Gives the slots back that no insert has used."""
        self.spare.abort()


class Publication:
    """Reserves and publishes for one engine. One thread publishes; any thread may reserve."""

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
                spare = namespace.reserve_spare(count, budget=budget)
            except PoolExhausted:
                count //= 2
                continue
            except StoreError as error:
                _logger.debug("slots_not_reserved", extra={"reason": str(error)})
                break
            return SlotsOfCall(spare, spare.take(spare.free_count))
        return None

    def publish(
        self,
        key: RequestKey,
        token_ids: Sequence[int],
        pages: Sequence[Written],
        hint: ReuseHint | None = None,
    ) -> PublishedPages:
        """Publishes consecutive pages of the path, and pages of other groups on it.

        ``hint`` is for the pages of the path. ``token_ids`` end with the last of the pages.
        Publishes nothing if the store lacks a page of the path before the first. The slots of a
        failed call are used up.
        """
        namespace = self._work.open_namespace(key)
        if namespace is None or isinstance(namespace, StoreError):
            return PublishedPages(0)
        packed = self._work.packed(key, token_ids)
        path = [each for each in pages if not each.page.group]
        budget = StoreBudget(SAVE_BUDGET)
        # The lookup was counted as the request arrived; its own pages are no hits.
        with namespace.match(packed + ONE_MORE, is_base=True, budget=budget) as match:
            end = len(packed) // TOKEN_BYTES // self._page_tokens
            first = match.page_count
            if match.failure is not None or first < (path[0].page.number if path else end):
                return PublishedPages(first)
            fresh = [each for each in path if each.page.number >= first]
            hanging = [each for each in pages if each.page.group]
            used: list[Spare] = []
            try:
                with namespace.new_reservation(start_page=first, budget=budget) as reservation:
                    own = self._insert(reservation, match, packed, fresh, hanging, used, hint)
            except (StoreError, ValueError) as error:
                _logger.debug("insert_failed", extra={"reason": str(error)})
                return PublishedPages(first, frozenset(used))
            return PublishedPages(end, frozenset(used), own)

    def _insert(
        self,
        reservation: Reservation,
        match: Match,
        packed: bytes,
        path: Sequence[Written],
        hanging: Sequence[Written],
        used: list[Spare],
        hint: ReuseHint | None,
    ) -> int:
        """Inserts pages by batch; adds their slots to ``used``; returns how many of the path's.

        Counts those that nobody else had published.
        """
        own, base = 0, match
        page_bytes = self._page_tokens * TOKEN_BYTES
        for slots, part in _by_batch(path):
            start, stop = part[0].page.number, part[-1].page.number + 1
            used += [each.spare for each in part]
            inserted = reservation.insert(
                packed[start * page_bytes : stop * page_bytes],
                position=start * self._page_tokens,
                base=base if start == reservation.start_page else None,
                hint=hint,
                spare=slots.spare,
                slot_offsets=[each.spare.offset for each in part],
            )
            own += inserted.published_page_count
        end = len(packed) // page_bytes
        for slots, part in _by_batch(hanging):
            used += [each.spare for each in part]
            reservation.insert(
                b"",
                position=end * self._page_tokens,
                base=None if path else base,
                spare=slots.spare,
                group_pages=list(_group_inserts(part)),
            )
        return own


def _by_batch(pages: Sequence[Written]) -> Iterator[tuple[SlotsOfCall, list[Written]]]:
    """Yields runs of pages in their order whose slots are of one batch."""
    for _, run in groupby(pages, key=lambda each: id(each.spare.batch)):
        part = list(run)
        slots = part[0].spare.batch.slots
        assert isinstance(slots, SlotsOfCall)
        yield slots, part


def _group_inserts(pages: Sequence[Written]) -> Iterator[GroupInsert]:
    by_group = sorted(pages, key=lambda each: each.page)
    for group, run in groupby(by_group, key=lambda each: each.page.group):
        part = list(run)
        yield GroupInsert(
            group,
            [each.page.number for each in part],
            [each.spare.offset for each in part],
        )
