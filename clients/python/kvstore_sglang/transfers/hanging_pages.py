"""Saves of pages that hang off a path: those of sliding windows, for example.

Each part of such a page is a page of a KV cache group in the store. They are published together
after the pages of the path, or not at all.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from kvstore_client import (
    GroupInsert,
    GroupWindow,
    Match,
    Namespace,
    Pages,
    SpareSlots,
    StoreBudget,
)
from kvstore_client.errors import StoreError
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES
from kvstore_sglang.engine.component_pages import ComponentPages
from kvstore_sglang.transfers.page_copies import PageCopies

_logger = logging.getLogger(__name__)


class HangingPages(NamedTuple):
    """Pages of one component in slots of its pool: the last of a sequence, in order."""

    component: ComponentPages
    slots: torch.Tensor

    @property
    def page_count(self) -> int:
        """The number of pages."""
        return self.component.page_count(self.slots)


class HangingSave(NamedTuple):
    """The end of a save: whether the store has all pages, and the bytes that were copied."""

    stored: bool
    byte_count: int = 0


class PathPages(Protocol):
    """A sequence whose path is in the store, and what hangs off it."""

    @property
    def tokens(self) -> bytes:
        """The packed tokens of whole pages."""

    @property
    def events(self) -> Sequence[torch.cuda.Event]:
        """Events of the device before which slots may not be read."""

    @property
    def hanging(self) -> Sequence[HangingPages]:
        """The pages that hang off it."""


class HangingSaves:
    """Publishes pages that hang off a path. One thread uses it."""

    def __init__(self, copies: PageCopies, page_tokens: int) -> None:
        self._copies = copies
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._page_tokens = page_tokens

    def are_stored(self, namespace: Namespace, pages: PathPages, budget: StoreBudget) -> bool:
        """Returns whether the store has the whole path, and all that hangs off it."""
        windows = [
            GroupWindow(group, each.page_count)
            for each in pages.hanging
            for group in each.component.groups
        ]
        end = len(pages.tokens) // self._page_bytes
        asked = pages.tokens + ONE_MORE
        with namespace.match(asked, groups=windows, is_base=True, budget=budget) as match:
            return match.page_count == end

    def save(self, namespace: Namespace, pages: PathPages, budget: StoreBudget) -> HangingSave:
        """Copies the pages into spare slots and publishes them, all or none.

        A failure of the store, a lack of room, and a path that is not whole any more are saves that
        did not happen.
        """
        end = len(pages.tokens) // self._page_bytes
        asked = pages.tokens + ONE_MORE
        slot_count = sum(each.page_count * len(each.component.groups) for each in pages.hanging)
        try:
            with (
                namespace.match(asked, is_base=True, budget=budget) as base,
                namespace.reserve_spare(slot_count, budget=budget) as spare,
            ):
                if base.page_count < end:
                    return HangingSave(stored=False)
                return self._publish(namespace, pages, base, spare, budget)
        except (KeyError, StoreError) as error:
            _logger.debug("hanging_pages_not_saved", extra={"reason": repr(error)})
            return HangingSave(stored=False)

    def _publish(
        self,
        namespace: Namespace,
        pages: PathPages,
        base: Match,
        spare: SpareSlots,
        budget: StoreBudget,
    ) -> HangingSave:
        end = len(pages.tokens) // self._page_bytes
        inserts: list[GroupInsert] = []
        byte_count = 0
        for each in pages.hanging:
            offsets = [spare.take(each.page_count) for _ in each.component.groups]
            byte_count += self._copy(each, spare, offsets, pages.events)
            inserts += _inserts(each, end, offsets)
        with namespace.new_reservation(start_page=end, budget=budget) as reservation:
            reservation.insert(
                b"",
                position=end * self._page_tokens,
                base=base,
                spare=spare,
                group_pages=inserts,
            )
        return HangingSave(stored=True, byte_count=byte_count)

    def _copy(
        self,
        each: HangingPages,
        spare: SpareSlots,
        offsets: Sequence[Sequence[int]],
        events: Sequence[torch.cuda.Event],
    ) -> int:
        """Copies the pages of a component into spare slots; returns the bytes."""
        parts = [[spare.page(offset) for offset in part] for part in offsets]
        transfer = self._copies.transfer(each.component, each.slots, parts, events)
        runs = Pages(spare.runs([offset for part in offsets for offset in part])).dated_runs
        return self._copies.save(transfer, runs)


def _inserts(
    each: HangingPages, end: int, offsets: Sequence[Sequence[int]]
) -> Iterator[GroupInsert]:
    """Yields the inserts of a component's parts, whose pages end with page ``end`` of the path."""
    positions = range(end - each.page_count, end)
    for group, part in zip(each.component.groups, offsets, strict=True):
        yield GroupInsert(group, positions, part)
