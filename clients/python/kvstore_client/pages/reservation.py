"""Slots that this process may write."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Literal, NamedTuple, Self

from kvstore.v1 import prefix_cache_pb2, types_pb2
from kvstore_client.calls.deadlines import StoreBudget, shared_budget
from kvstore_client.errors import PageRecycled, StoreError
from kvstore_client.lifecycle.session import OpenedNamespace, Session
from kvstore_client.memory.mapped_extent import NO_CHECKSUM
from kvstore_client.memory.page_generations import PageGenerations
from kvstore_client.pages.held_pages import HeldPages, Hold, end_holds, require_not_reused
from kvstore_client.pages.match import InFlight, Match, match_of
from kvstore_client.pages.spare_slots import SpareSlots
from kvstore_client.values.kv_cache_groups import GroupInsert
from kvstore_client.values.packed_tokens import TOKEN_BYTES, Tokens, pack_tokens
from kvstore_client.values.page_runs import Pages

MILLISECONDS = 1000
# The values of ``expected_reuse`` in the protocol.
EXPECTED = {
    None: types_pb2.EXPECTED_REUSE_UNSPECIFIED,
    "continues": types_pb2.EXPECTED_REUSE_CONTINUES,
    "one_shot": types_pb2.EXPECTED_REUSE_ONE_SHOT,
}


class ReuseHint(NamedTuple):
    """A hint to the store's eviction policy. A wrong hint costs hits and nothing else.

    ``expected_reuse`` says that the conversation continues, or that no request for these
    pages is expected. The hint holds for ``horizon`` seconds, or without an end for None.
    Pages of higher ``priority``, an int32, are evicted later; zero is ordinary.
    """

    expected_reuse: Literal["continues", "one_shot"] | None = None
    horizon: float | None = None
    priority: int = 0

    def message(self) -> types_pb2.ReuseHint:
        """Returns the hint as a protocol message.

        Raises ``ValueError`` for an unknown ``expected_reuse``.
        """
        expected = EXPECTED.get(self.expected_reuse)
        if expected is None:
            known = " or ".join(repr(each) for each in EXPECTED if each)
            raise ValueError(f"expected_reuse is {known}, not {self.expected_reuse!r}")
        # Zero would mean without an end.
        horizon = 0 if self.horizon is None else max(int(self.horizon * MILLISECONDS), 1)
        return types_pb2.ReuseHint(
            expected_reuse=expected, horizon_ms=horizon, priority=self.priority
        )


class Inserted(NamedTuple):
    """The pages that the index has for the inserted tokens, in prefix order.

    ``published_page_count`` of them are the caller's own. If another worker inserted a page
    first, the index keeps that worker's page.
    """

    pages: Pages
    published_page_count: int


class _Insertion(NamedTuple):
    """The state of a reservation after an insert.

    ``pages`` are all its slots, and ``end`` is the number of pages through the last inserted one.
    ``bases`` hold the pages that the insert needs: :func:`require_not_reused` has to pass for them
    before the insert is sent.
    """

    pages: Pages
    end: int
    bases: Sequence[Hold]


class Reservation:
    """Slots for the pages of one sequence from ``start_page`` on.

    Slot k is for the sequence's page ``start_page + k``. Write a page, then :meth:`insert`
    it. From then on the page is immutable, and the whole path through the last inserted page
    stays unchanged until :meth:`abort`. An insert may add slots from a ``SpareSlots``.

    As a context manager it aborts at the end, after it waited for the device. Inserted pages
    stay in the store. All its calls are charged to the ``budget`` of the request that made it.
    One thread at a time uses it.
    """

    def __init__(
        self,
        hold: Hold,
        namespace: OpenedNamespace,
        start_page: int,
        pages: Pages,
        budget: StoreBudget,
    ) -> None:
        """``pages`` are the slots that the store granted."""
        self.hold = hold
        self.start_page = start_page
        self._take(pages)
        hold.slotless = not pages
        self.budget = budget
        self._namespace = namespace
        # The number of pages from the sequence's beginning through the last inserted one.
        self._inserted_end = 0
        self._bases: set[Hold] = set()
        self._published_groups: dict[int, set[int]] = {}

    @property
    def reservation_id(self) -> int:
        """The reservation's id within the lease."""
        return self.hold.reservation_ids[0]

    @property
    def page_count(self) -> int:
        """The number of slots."""
        return len(self.pages)

    @property
    def published_groups(self) -> Mapping[int, AbstractSet[int]]:
        """The positions of the group pages that its inserts published, by group.

        All others that its inserts named were cached already.
        """
        return MappingProxyType(self._published_groups)

    @property
    def growth_group(self) -> Hashable:
        """A key that is equal for reservations which one :func:`grow_reservations` accepts."""
        return id(self.hold.session), self._namespace.namespace_id

    def grow(self, page_count: int) -> Pages:
        """Grows to ``page_count`` slots in total and returns them all. Can be repeated.

        Raises ``StoreError``, such as ``PoolExhausted``, and keeps the earlier slots. Raises
        ``PageRecycled`` if the store reused an earlier slot: the store's answer names the
        slots as they are now. Raises ``ValueError`` once the reservation was aborted.
        """
        grow_reservations([(self, page_count)])
        return self.pages

    def insert(
        self,
        tokens: Tokens,
        *,
        position: int,
        base: "Match | Reservation | None" = None,
        next_token: int | None = None,
        hint: ReuseHint | None = None,
        spare: SpareSlots | None = None,
        slot_offsets: Sequence[int] = (),
        group_pages: Iterable[GroupInsert] = (),
    ) -> Inserted:
        """Publishes the pages of ``tokens``, which begin ``position`` tokens into the sequence.

        - ``position`` is at a page's start. ``tokens`` may end within a page. That partial page
          is the last that this reservation publishes, and is immutable as any other.
        - ``base`` holds the pages before ``position``: a match of the same sequence, or a
          reservation that inserted them. It is None if no page precedes, or if this reservation
          inserted them.
        - ``next_token`` is stored at the end of ``tokens``. It is the argmax of what follows
          them, never a sample.
        - ``hint`` tells the expected reuse of these pages. It only orders evictions.
        - ``slot_offsets`` of ``spare`` are the slots of the last pages of ``tokens``, for which
          this reservation has none yet. They become this reservation's next slots.
        - ``group_pages`` are pages of further KV cache groups, each in a slot of ``spare``. Their
          positions are of whole pages that this reservation has inserted, this call included,
          or of ``base`` if it inserts none. ``tokens`` may be empty.

        No insert may name an offset of ``spare`` again until a refill, whether it succeeded or
        failed. A page that was cached already keeps its slot reserved until :meth:`abort`.

        Waits for the device first. Then it compares the generations of this reservation's
        pages and of every base's pages, so that nothing computed from reused pages is
        published. Can be repeated, also with fewer tokens, to store a next token at an end
        within the inserted pages. A repeated call names no ``slot_offsets``.

        Raises ``StoreError``; nothing is published then, except perhaps after
        ``StoreUnavailable``. Raises ``PageRecycled`` if the store reused a page that was read
        or written. Raises the errors of ``ClientConfig.wait_for_device``, with nothing
        published. Raises ``ValueError`` for invalid tokens or an invalid hint, and once the
        reservation was aborted.
        """
        session = self._open_session()
        session.wait_for_device()
        request = prefix_cache_pb2.InsertPrefixRequest()
        insertion = self._insertion(
            request,
            tokens,
            position=position,
            base=base,
            next_token=next_token,
            hint=hint,
            spare=spare,
            slot_offsets=slot_offsets,
            group_pages=group_pages,
        )
        require_not_reused(insertion.bases)
        with session.request(self.budget) as asking:
            answer = session.ask_again(asking, session.lease.insert, request)
        return self._inserted(insertion, answer)

    def _insertion(
        self,
        request: prefix_cache_pb2.InsertPrefixRequest,
        tokens: Tokens,
        *,
        position: int,
        base: "Match | Reservation | None" = None,
        next_token: int | None = None,
        hint: ReuseHint | None = None,
        spare: SpareSlots | None = None,
        slot_offsets: Sequence[int] = (),
        group_pages: Iterable[GroupInsert] = (),
    ) -> "_Insertion":
        """Fills in an empty insert request. Returns the reservation's state after the insert.

        The caller must have waited for the device.
        """
        self._open_session()
        packed = pack_tokens(tokens)
        request.reservation_id = self.reservation_id
        sequence = request.sequence
        sequence.tokens, sequence.position = packed, position
        if next_token is not None:
            request.next_token = next_token
        if hint is not None:
            request.hint.CopyFrom(hint.message())
        if base is not None and base.hold is not None:
            self._bases.add(base.hold)
        if isinstance(base, Match):
            if base.pin_id is not None:
                sequence.base_pin_id = base.pin_id
        elif base is not None:
            sequence.base_reservation_id = base.reservation_id
        groups = list(group_pages)
        first, end = self._pages_of(position, len(packed) // TOKEN_BYTES)
        pages = self.pages
        if spare is not None:
            pages = self._name_slots(request, spare, slot_offsets, groups)
        elif slot_offsets or groups:
            raise ValueError("only spare slots have offsets")
        request.page_checksums.extend(self._checksums(pages, first, end))
        bases = [hold for hold in (self.hold, *self._bases) if hold.open]
        return _Insertion(pages, end, bases)

    def _inserted(
        self, insertion: "_Insertion", answer: prefix_cache_pb2.InsertPrefixResponse
    ) -> Inserted:
        """Notes an insert that the store answered, and returns its outcome."""
        if insertion.pages is not self.pages:
            self._take(insertion.pages)
        self._inserted_end = max(self._inserted_end, insertion.end)
        # Not required to be mapped: another worker's page may be in an extent unmapped here.
        pages = Pages(answer.runs)
        for each in answer.groups:
            self._published_groups.setdefault(each.group, set()).update(each.published_positions)
        return Inserted(pages, answer.published_page_count)

    def _name_slots(
        self,
        request: prefix_cache_pb2.InsertPrefixRequest,
        spare: SpareSlots,
        slot_offsets: Sequence[int],
        groups: Sequence[GroupInsert],
    ) -> Pages:
        """Names slots of ``spare`` in a request; returns this reservation's slots after it.

        Raises ``ValueError``, or ``PageRecycled`` if a slot was reused.
        """
        if (spare.session, spare.namespace_id) != (self.hold.session, self._namespace.namespace_id):
            raise ValueError("the spare slots are of another namespace or session")
        moved = spare.runs(slot_offsets)
        named = [spare.runs(each.slot_offsets) for each in groups]
        offsets = [*slot_offsets, *(offset for each in groups for offset in each.slot_offsets)]
        if len(set(offsets)) < len(offsets):
            raise ValueError("an offset is named twice")
        every = Pages([*moved, *(run for each in named for run in each)])
        recycled = PageGenerations(every).recycled(self.hold.session.extents.get)
        if recycled:
            raise PageRecycled(recycled)
        request.slots_reservation_id = spare.reservation_id
        request.slot_offsets.extend(slot_offsets)
        for group, runs in zip(groups, named, strict=True):
            request.group_pages.add(
                group=group.group,
                page_positions=group.page_positions,
                slot_offsets=group.slot_offsets,
                page_checksums=self.hold.session.checksums_of(Pages(runs)),
            )
        spare.name(offsets, self.hold)
        return Pages([*self.pages.named, *moved])

    def _take(self, pages: Pages) -> None:
        """Records all slots that the reservation has, in page order."""
        self.pages = pages
        self.hold.generations = PageGenerations(pages)

    def _growth(self, page_count: int) -> prefix_cache_pb2.ReservationRequest:
        """Returns the request for ``page_count`` slots in total."""
        return prefix_cache_pb2.ReservationRequest(
            reservation_id=self.reservation_id, start_page=self.start_page, page_count=page_count
        )

    def _grown(self, grant: prefix_cache_pb2.ReservationGrant) -> None:
        """Takes the granted slots, which are all that the reservation now has."""
        self._take(self.hold.session.require_mapped(Pages(grant.runs)))

    def abort(self) -> None:
        """Waits for the device, then gives the slots back. Can be repeated.

        Published pages stay in the store. Raises the errors of
        ``ClientConfig.wait_for_device``, and then holds the slots for as long as the process
        lives.
        """
        end_holds(self.hold)

    def _pages_of(self, position: int, token_count: int) -> tuple[int, int]:
        """Returns the first page of a run of tokens, and the page after its last."""
        page_tokens = self._namespace.page_tokens
        return position // page_tokens, -(-(position + token_count) // page_tokens)

    def _checksums(self, pages: Pages, first: int, end: int) -> list[int]:
        """Returns the checksums of pages ``first`` to ``end``, without those inserted before.

        ``pages`` are those that this reservation has. Returns none if it lacks one: the store
        refuses such an insert.
        """
        fresh = max(first, self._inserted_end)
        slots = pages[max(fresh - self.start_page, 0) : max(end - self.start_page, 0)]
        if first < self.start_page or len(slots) < end - fresh:
            return []
        checksums = self.hold.session.checksums_of(slots)
        return [NO_CHECKSUM] * (fresh - first) + checksums if checksums else []

    def _open_session(self) -> Session:
        """Returns the session; raises ``ValueError`` once the reservation was aborted."""
        self.hold.session.check_process()
        if not self.hold.open:
            raise ValueError(f"reservation {self.reservation_id} was aborted")
        # The next call may give it slots.
        self.hold.slotless = False
        return self.hold.session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


def grow_reservations(wanted: Sequence[tuple[Reservation, int]]) -> None:
    """Grows each reservation to a total of slots, in one call: all or none. Can be repeated.

    All must be of one namespace and one session, which lasts until the store restarts. Each
    ``pages`` has all its slots afterwards. Each reservation's budget is charged for the call.
    The call takes at most as long as the largest of these budgets has left.

    Raises ``StoreError``, such as ``PoolExhausted``, and keeps the earlier slots. Raises
    ``PageRecycled`` if the store reused an earlier slot: its answer names the slots as they
    are now, and the other reservations have grown. Raises ``ValueError`` once one was aborted,
    or if they are of several namespaces or sessions.
    """
    if len({reservation.growth_group for reservation, _ in wanted}) != 1:
        raise ValueError("a call grows reservations of one namespace and one session")
    [session] = {reservation._open_session() for reservation, _ in wanted}  # noqa: SLF001 - its own
    namespace_id = wanted[0][0]._namespace.namespace_id  # noqa: SLF001
    requests = [reservation._growth(count) for reservation, count in wanted]  # noqa: SLF001
    with (
        shared_budget([reservation.budget for reservation, _ in wanted]) as budget,
        session.request(budget) as asking,
    ):
        session.settle(asking)
        grants = asking.ask(session.lease.reserve, namespace_id, requests, asking.remaining())
        recycled = []
        for (reservation, _), grant in zip(wanted, grants, strict=True):
            found = reservation.hold.recycled()
            recycled += found
            if not found:
                reservation._grown(grant)  # noqa: SLF001
        if recycled:
            raise PageRecycled(recycled)


class Acquired(HeldPages):
    """The cached prefix of a sequence, and a reservation for the other pages.

    ``reservation`` is None if no slots are available. If all pages are cached it has no slots
    yet, and can grow. As a context manager it releases both at the end, after it waited for
    the device once. One thread at a time uses it.
    """

    def __init__(self, match: Match, reservation: Reservation | None = None) -> None:
        self.match = match
        self.reservation = reservation

    @property
    def failure(self) -> StoreError | None:
        """The error of the store, or None if it answered."""
        return self.match.failure

    @property
    def in_flight(self) -> InFlight | None:
        """The prefill of another reservation that computes more of the sequence, or None.

        A request that was asked to yield and has one holds nothing.
        """
        return self.match.in_flight

    @property
    def holds(self) -> list[Hold]:
        """The holds of the match and of the reservation."""
        reserved = [] if self.reservation is None else [self.reservation.hold]
        return [*self.match.holds, *reserved]


def acquired_of(
    session: Session,
    namespace: OpenedNamespace,
    ids: tuple[int, int, int],
    answer: prefix_cache_pb2.AcquirePrefixResponse,
    budget: StoreBudget,
) -> Acquired:
    """Returns what an answer to an acquire gives, under the ids that the call named.

    Call it only within ``Session.request``. Raises ``StoreUnavailable`` if a page is not mapped.
    """
    pin_id, source_pin_id, reservation_id = ids
    granted = session.require_mapped(Pages(answer.grant.runs))
    pins = pin_id, source_pin_id
    match = match_of(session, pins, answer.match, namespace.page_tokens)
    if not answer.HasField("grant"):
        return Acquired(match)
    hold = Hold(session, reservation_ids=(reservation_id,))
    start_page = answer.grant.start_page
    return Acquired(match, Reservation(hold, namespace, start_page, granted, budget))
