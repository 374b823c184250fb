"""The calls that reserve spare slots, and that publish the pages in them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kvstore_client import (
    GroupInsert,
    Inserted,
    Match,
    Namespace,
    PageRef,
    Reservation,
    ReuseHint,
    SpareSlots,
    StepOutcome,
    StoreBudget,
    StoreStep,
)
from kvstore_client.engines.reserved_pages import SAVE_BUDGET, TRIES_FOR_ROOM
from kvstore_client.errors import PoolExhausted, StoreError
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import GroupPage
from kvstore_vllm.offload.reserve import Spare, SpareBatch
from kvstore_vllm.scheduler.store_work import StoreWork

_logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """A page in a spare slot, with vLLM's key for it."""

    key: bytes
    page: GroupPage
    spare: Spare


class PagesToPublish(NamedTuple):
    """Consecutive pages of a request's path, and pages of other groups on it.

    ``hint`` is for the pages of the path. ``token_ids`` end with the last of the pages.
    """

    key: RequestKey
    token_ids: Sequence[int]
    pages: Sequence[Written]
    hint: ReuseHint | None = None


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

    def publish(self, wanted: Sequence[PagesToPublish]) -> list[PublishedPages]:
        """Publishes pages of requests of one namespace, those of all requests in one call.

        One more call before it finds the pages before theirs, unless they are the first. Publishes
        nothing of a request if the store lacks a page of the path before its first. The slots of
        a failed insert are used up.
        """
        namespace = self._work.open_namespace(wanted[0].key)
        if namespace is None or isinstance(namespace, StoreError):
            return [PublishedPages(0)] * len(wanted)
        sequences = [self._sequence(each) for each in wanted]
        try:
            known = [each for each in sequences if each is not None]
            self._match([each for each in known if each.needs_base], namespace)
            self._insert([each for each in known if each.has_base], namespace)
            # Another request of this call had the pages before theirs, or the disk has them.
            for each in known:
                if not each.has_base:
                    each.match_alone(namespace)
                    self._insert([each] if each.has_base else [], namespace)
        finally:
            for sequence in sequences:
                if sequence is not None:
                    sequence.release()
        return [PublishedPages(0) if each is None else each.result() for each in sequences]

    def _sequence(self, wanted: PagesToPublish) -> "_Sequence | None":
        try:
            packed = self._work.packed(wanted.key, wanted.token_ids)
        except Exception:  # one request's error is no other's
            _logger.exception("store_work_failed")
            return None
        return _Sequence(wanted, packed, self._page_tokens)

    def _match(self, sequences: Sequence["_Sequence"], namespace: Namespace) -> None:
        """Pins the pages before those of each sequence, in one call."""
        step = StoreStep(namespace)
        # The lookups were counted as the requests arrived; their own pages are no hits.
        found = [
            (each, step.match(each.asked, is_base=True, budget=each.budget)) for each in sequences
        ]
        step.run()
        for each, outcome in found:
            each.take(outcome.result())

    def _insert(self, sequences: Sequence["_Sequence"], namespace: Namespace) -> None:
        """Inserts the pages of sequences, and releases them: one call for a part of each."""
        for each in sequences:
            each.reserve(namespace)
        while any(each.parts for each in sequences):
            step = StoreStep(namespace)
            found = [(each, each.add_part(step)) for each in sequences if each.parts]
            for each, _ in found:
                if not each.parts:
                    step.release(*each.held)
            step.run()
            for each, outcome in found:
                each.inserted(outcome)


class _Part(NamedTuple):
    """Pages whose slots are of one batch: consecutive ones of the path, and of other groups."""

    slots: "SlotsOfCall"
    path: Sequence[Written]
    hanging: Sequence[Written] = ()


class _Sequence:
    """The pages of one request while they are published."""

    def __init__(self, wanted: PagesToPublish, packed: bytes, page_tokens: int) -> None:
        self.budget = StoreBudget(SAVE_BUDGET)
        # Parts that are not inserted yet.
        self.parts: list[_Part] = []
        self._wanted = wanted
        self._packed = packed
        self._page_tokens = page_tokens
        self._end = len(packed) // TOKEN_BYTES // page_tokens
        self._path = [each for each in wanted.pages if not each.page.group]
        self._first = self._path[0].page.number if self._path else self._end
        self._match = Match()
        self._reservation: Reservation | None = None
        self._used: list[Spare] = []
        self._own = 0
        self._failed = False

    @property
    def asked(self) -> bytes:
        """The tokens to match, with one more, because a match leaves the last token out."""
        return self._packed + ONE_MORE

    @property
    def needs_base(self) -> bool:
        """True if pages precede those to publish."""
        return self._first > 0

    @property
    def has_base(self) -> bool:
        """True if all pages before those to publish are pinned."""
        return self._match.page_count >= self._first

    @property
    def held(self) -> Sequence[Match | Reservation]:
        """The holds that end as the last part is inserted."""
        return [self._match, *([] if self._reservation is None else [self._reservation])]

    def take(self, match: Match) -> None:
        """Takes the match of the pages before; another one releases it."""
        self._match.release()
        self._match = match

    def match_alone(self, namespace: Namespace) -> None:
        """Pins the pages before, in a call of its own, which waits for the disk."""
        self.take(namespace.match(self.asked, is_base=True, budget=self.budget))

    def reserve(self, namespace: Namespace) -> None:
        """Begins to insert the pages that the store lacks."""
        first = self._match.page_count
        fresh = [each for each in self._path if each.page.number >= first]
        hanging = [each for each in self._wanted.pages if each.page.group]
        try:
            self._reservation = namespace.new_reservation(start_page=first, budget=self.budget)
        except StoreError as error:
            self._fail(error)
            return
        self.parts = [_Part(slots, part) for slots, part in _by_batch(fresh)]
        for slots, part in _by_batch(hanging):
            if self.parts and self.parts[-1].slots is slots and not self.parts[-1].hanging:
                self.parts[-1] = self.parts[-1]._replace(hanging=part)
            else:
                self.parts.append(_Part(slots, (), part))

    def add_part(self, step: StoreStep) -> StepOutcome[Inserted]:
        """Adds the insert of the next part to a step."""
        reservation = self._reservation
        assert reservation is not None
        part = self.parts.pop(0)
        start = part.path[0].page.number if part.path else self._end
        stop = start + len(part.path)
        page_bytes = self._page_tokens * TOKEN_BYTES
        is_first = start == reservation.start_page
        self._used += [each.spare for each in (*part.path, *part.hanging)]
        return step.insert(
            reservation,
            self._packed[start * page_bytes : stop * page_bytes],
            position=start * self._page_tokens,
            base=self._match if is_first and self._match.page_count else None,
            hint=self._wanted.hint if part.path else None,
            spare=part.slots.spare,
            slot_offsets=[each.spare.offset for each in part.path],
            group_pages=list(_group_inserts(part.hanging)),
        )

    def inserted(self, outcome: StepOutcome[Inserted]) -> None:
        """Takes the outcome of a part. After a failure nothing more is inserted."""
        try:
            self._own += outcome.result().published_page_count
        except (StoreError, ValueError) as error:
            self._fail(error)

    def release(self) -> None:
        """Gives back what is still held."""
        self._match.release()
        if self._reservation is not None:
            self._reservation.abort()

    def result(self) -> PublishedPages:
        """Returns what was published."""
        if self._failed or not self.has_base:
            return PublishedPages(min(self._match.page_count, self._first), frozenset(self._used))
        return PublishedPages(self._end, frozenset(self._used), self._own)

    def _fail(self, error: Exception) -> None:
        _logger.debug("insert_failed", extra={"reason": str(error)})
        self._failed = True
        self.parts = []


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
