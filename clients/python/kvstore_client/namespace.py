"""A namespace for the client's life, through restarts of the store."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.calls.circuit_breaker import ProbeSample
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.errors import (
    FeatureUnsupported,
    NamespaceNotFound,
    StoreError,
    StoreUnavailable,
)
from kvstore_client.lifecycle.session import OpenedNamespace, Session
from kvstore_client.lifecycle.store_connector import Connector
from kvstore_client.memory.address_range import AddressRange
from kvstore_client.memory.mapped_extent import MappedExtent
from kvstore_client.memory.page_generations import PageGenerations
from kvstore_client.pages.held_pages import Hold, end_holds
from kvstore_client.pages.match import InFlight, Match, Prefetched, Source, match_of
from kvstore_client.pages.reservation import Acquired, Reservation, acquired_of
from kvstore_client.pages.spare_slots import SpareSlots
from kvstore_client.values.kv_cache_groups import GroupWindow, window_messages
from kvstore_client.values.namespace_key import NamespaceIdentity, NamespaceKey
from kvstore_client.values.packed_tokens import Tokens, pack_tokens
from kvstore_client.values.page_layout import PageLayout
from kvstore_client.values.page_runs import DatedRun, PageRef, Pages

if TYPE_CHECKING:
    import torch

# The largest value of a uint32 field.
MAX_SPEED = MAX_IDLE_MS = (1 << 32) - 1
MILLISECONDS = 1_000
# The feature of a store that loads pages ahead of a match.
PREFETCH = "prefetch"
ALL_BYTES = slice(None)


class Namespace:
    """A namespace that each session of its client opens in the background.

    The request path (:meth:`match`, :meth:`acquire`, :meth:`reserve`) takes at
    most ``call_timeout`` a call, never attaches, and returns at once if no store is
    attached. All calls of one request together take at most its budget. Pass the budget of
    :meth:`new_budget` to each of them. Without one, each match and peek has its own, and
    so has a reservation with all its calls. Any thread may use it; its results belong to one
    thread at a time. All methods raise ``ForkedClient`` in a forked child.

    ``prefill_tokens_per_second``, which may change at any time, is how many tokens the
    engine computes in a second without a cache. Pages that the store's disk would deliver
    more slowly are a miss. 0: the rate is unknown, and everything is loaded.
    """

    def __init__(self, connector: Connector, key: NamespaceKey) -> None:
        self._connector = connector
        self._key = key
        self.prefill_tokens_per_second = 0.0
        connector.want(key)

    @property
    def identity(self) -> NamespaceIdentity:
        """The engines that may share its pages."""
        return self._key.identity

    @property
    def layout(self) -> PageLayout:
        """The layout of its pages."""
        return self._key.layout

    @property
    def namespace_id(self) -> bytes:
        """Its id at the store, for administration; raises ``StoreError`` if it is not open."""
        return self._opened(self._connector.require_session()).namespace_id

    def forget(self) -> None:
        """Closes the namespace for this client's requests. Later sessions do not open it.

        Open holds stay valid. This applies to all ``Namespace`` objects of the same identity
        and layout.
        """
        self._connector.forget(self._key)

    def salted(self, salt: bytes) -> "Namespace":
        """Returns the namespace that differs only in its salt. It is opened in the background."""
        identity = replace(self.identity, salt=salt)
        return Namespace(self._connector, NamespaceKey(identity, self._key.layout))

    # Opening.

    @property
    def failure(self) -> StoreError | None:
        """The reason why it is not open, such as ``LayoutMismatch``, or None if it is."""
        try:
            self._opened(self._connector.require_session())
        except StoreError as error:
            return error
        return None

    def wait_open(self, timeout: float) -> bool:
        """Waits until it is open, for ``timeout`` seconds at most; returns whether it is.

        Also waits if the store refuses the namespace: the store may restart.
        """
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self.failure is None, timeout)

    # The request path.

    def new_budget(self) -> StoreBudget:
        """Returns the configured time for all calls of one request."""
        return self._connector.new_budget()

    def match(
        self,
        tokens: Tokens,
        *,
        accept_next_token: bool = False,
        groups: Sequence[GroupWindow] = (),
        group_start_page: int = 0,
        is_base: bool = False,
        budget: StoreBudget | None = None,
    ) -> Match:
        """Pins the longest cached prefix of ``tokens``, less than all of them.

        With ``accept_next_token`` it pins all of them if their next token is stored. Set it
        only if you decode greedily, without processor, penalty or grammar.

        With ``groups`` it ends at the deepest page at which each group has all pages of its
        window. ``Match.groups`` has these pages, under the same pin. The caller has the pages
        of these groups before ``group_start_page``. Such a match has no source and no next token.

        With ``is_base`` it is only the base of an insert: it has no source, and is neither a lookup
        nor a hit to the store. An older server counts both.

        A failure of the store is a miss with ``Match.failure``. So is a server that does not
        know groups (``FeatureUnsupported``). Raises ``ValueError`` for invalid tokens or groups.
        """
        packed = pack_tokens(tokens)
        windows = window_messages(groups)
        try:
            session = self._connector.require_session()
            return self._match(
                session,
                packed,
                budget or self.new_budget(),
                accept_next_token=accept_next_token,
                windows=windows,
                group_start_page=group_start_page,
                is_base=is_base,
            )
        except StoreError as error:
            return Match(failure=error.with_traceback(None))

    def acquire(
        self,
        tokens: Tokens,
        *,
        total_page_count: int,
        accept_next_token: bool = False,
        yield_to_in_flight: bool = False,
        yield_idle: float | None = None,
        budget: StoreBudget | None = None,
    ) -> Acquired:
        """Matches like :meth:`match` and reserves the rest of ``total_page_count`` pages.

        Takes one round trip. Copy the match's source into the first reserved page. With
        ``yield_to_in_flight`` nothing is pinned or reserved if another reservation computes
        at least a page more of ``tokens`` than is cached; ``Acquired.in_flight`` is then set.
        ``yield_idle`` bounds the time, in seconds, since that reservation last advanced:
        one of those who wait for a hung worker takes over. A failure of the store is a miss
        without a reservation. Raises ``ValueError`` for invalid tokens.
        """
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            return self._acquire(
                session,
                packed,
                total_page_count,
                budget or self.new_budget(),
                accept_next_token=accept_next_token,
                yield_idle_ms=idle_ms(yield_idle) if yield_to_in_flight else None,
            )
        except StoreError as error:
            return Acquired(Match(failure=error.with_traceback(None)))

    @property
    def can_prefetch(self) -> bool:
        """True if the store in use loads pages ahead of a match, because it has a tier 3."""
        session = self._connector.session
        return session is not None and PREFETCH in session.features

    def prefetch(self, tokens: Tokens, *, budget: StoreBudget | None = None) -> Prefetched:
        """Begins to load the pages of ``tokens`` that only the store's tier 3 has into memory.

        Does not wait for the loads: a match finds them later, or joins them. For a request that
        waits in a queue. Takes free slots only, evicts and pins nothing, and may be repeated.
        Makes no call unless :attr:`can_prefetch`. A failure of the store loads nothing and is in
        ``Prefetched.failure``. Raises ``ValueError`` for invalid tokens.
        """
        packed = pack_tokens(tokens)
        if not self.can_prefetch:
            return Prefetched()
        try:
            session, opened = self._opened_session()
            with session.request(budget or self.new_budget()) as asking:
                answer = asking.ask(
                    session.lease.prefetch, opened.namespace_id, packed, asking.remaining()
                )
        except StoreError as error:
            if isinstance(error, NamespaceNotFound):
                self._lost(session)
            return Prefetched(failure=error.with_traceback(None))
        return Prefetched.of(answer)

    def reserve(
        self, *, start_page: int, page_count: int, budget: StoreBudget | None = None
    ) -> Reservation:
        """Reserves slots for ``page_count`` pages from ``start_page`` on, all or none.

        Raises ``StoreError``: ``PoolExhausted``, ``StoreUnavailable`` and others.
        """
        session = self._connector.require_session()
        opened = self._opened(session)
        budget = budget or self.new_budget()
        pages, hold = self._reserve(session, opened, start_page, page_count, budget)
        return Reservation(hold, opened, start_page, pages, budget)

    def _reserve(
        self,
        session: Session,
        opened: OpenedNamespace,
        start_page: int,
        page_count: int,
        budget: StoreBudget,
    ) -> tuple[Pages, Hold]:
        reservation_id = session.take_id()
        request = prefix_cache_pb2.ReservationRequest(
            reservation_id=reservation_id, start_page=start_page, page_count=page_count
        )
        with session.request(budget, reservation_ids=(reservation_id,)) as asking:
            session.settle(asking)
            call, namespace_id = session.lease.reserve, opened.namespace_id
            try:
                [grant] = asking.ask(call, namespace_id, [request], asking.remaining())
            except NamespaceNotFound:
                self._lost(session)
                raise
            pages = session.require_mapped(Pages(grant.runs))
            return pages, Hold(session, reservation_ids=(reservation_id,))

    def reserve_spare(self, page_count: int, *, budget: StoreBudget | None = None) -> SpareSlots:
        """Reserves ``page_count`` slots for pages that are not known yet, all or none.

        Inserts publish them anywhere in the namespace. Raises ``StoreError``: ``PoolExhausted``,
        ``StoreUnavailable`` and others.
        """
        session = self._connector.require_session()
        opened = self._opened(session)
        pages, hold = self._reserve(session, opened, 0, page_count, budget or self.new_budget())
        return SpareSlots(hold, opened, pages)

    def new_reservation(self, *, start_page: int, budget: StoreBudget | None = None) -> Reservation:
        """Returns a reservation without slots, which makes no call until its first insert.

        Its inserts take slots from a ``SpareSlots``, for pages from ``start_page`` on. Raises
        ``StoreError`` if the store is not in use now, and ``ValueError`` for a negative page.
        """
        if start_page < 0:
            raise ValueError(f"start_page is {start_page}: set 0 or more")
        session = self._connector.require_session()
        opened = self._opened(session)
        reservation_id = session.take_id()
        budget = budget or self.new_budget()
        with session.request(budget):
            hold = Hold(session, reservation_ids=(reservation_id,))
        return Reservation(hold, opened, start_page, Pages(), budget)

    def peek(
        self,
        tokens: Tokens,
        *,
        groups: Sequence[GroupWindow] = (),
        group_start_page: int = 0,
    ) -> int:
        """Returns how many tokens a match would find, source included; 0 if the store fails.

        ``groups`` and ``group_start_page`` are those of :meth:`match`. An older server ignores
        them. Has no effect on the cache. Raises ``ValueError`` for invalid tokens or groups.
        """
        answer = self._peek(tokens, groups, group_start_page)
        return 0 if answer is None else answer.matched_token_count + answer.source_token_count

    def cached_token_count(self, tokens: Tokens) -> int | None:
        """Returns how many tokens a match would cover in place; None if the store fails.

        Has no effect on the cache. Raises ``ValueError`` for invalid tokens.
        """
        answer = self._peek(tokens)
        return None if answer is None else answer.matched_token_count

    def peek_in_flight(self, tokens: Tokens) -> InFlight | None:
        """Returns the reservation that computes more of ``tokens`` than is cached.

        Returns None if there is none, or if the store fails. Has no effect. Raises
        ``ValueError`` for invalid tokens.
        """
        answer = self._peek(tokens)
        return None if answer is None else InFlight.of(answer)

    # The pages in this process.

    @property
    def session_number(self) -> int:
        """A number that changes with the set of mapped extents: build views anew then.

        Read it while something is held; the memory stays mapped until that is released.
        A view keeps its extent mapped for as long as it exists.
        """
        self._connector.check_process()
        session = self._connector.session
        return 0 if session is None else session.extents.number

    @property
    def extents(self) -> Mapping[int, memoryview]:
        """The mapped extents by id, each as in :meth:`extent`."""
        self._connector.check_process()
        return MappingProxyType({key: each.view() for key, each in self._mapped().items()})

    def extent(self, extent_id: int) -> memoryview:
        """Returns all slots of an extent as writable bytes; raises ``KeyError``.

        Raises :class:`~kvstore_client.errors.NotHostMemory` for pages of a device,
        as every method does that returns bytes: a device's pages have only tensors.
        """
        return self._extent(extent_id).view()

    def page(self, page: PageRef) -> memoryview:
        """Returns one page as writable bytes; raises ``KeyError`` or ``IndexError``.

        Only a reserved page that is not inserted yet may be written.
        """
        return self._extent(page.extent_id).slot(page.slot)[: self.layout.page_bytes]

    @property
    def address_range(self) -> AddressRange | None:
        """The addresses of its host pages, by ``ClientConfig.contiguous_memory``.

        Each session has its own: read it while something is held, as :attr:`session_number`.
        None without the setting, for pages of a device, and while the namespace is not open.
        """
        self._connector.check_process()
        session = self._connector.session
        opened = None if session is None else session.namespaces.get(self._key)
        if session is None or not isinstance(opened, OpenedNamespace):
            return None
        return session.extents.range_of(opened.arena_id)

    def extent_tensor(self, extent_id: int) -> "torch.Tensor":
        """Returns all slots as ``[slots, *page shape]``, sharing memory; raises ``KeyError``.

        An opaque layout gives ``[slots, page_bytes]`` of uint8.
        """
        return self._extent(extent_id).tensor(self.layout)

    def page_tensor(self, page: PageRef) -> "torch.Tensor":
        """Returns one page as a tensor, as in :meth:`extent_tensor`, sharing memory."""
        return self.extent_tensor(page.extent_id)[page.slot]

    def fill_page_tables(self, runs: Iterable[DatedRun], part: slice = ALL_BYTES) -> None:
        """Fills this process's page tables for ``part`` of each slot of ``runs``, once a slot.

        With it a first write of 54 MB takes 15 ms, and 40 ms without. Call it just before the
        write, if the client does not fill page tables (``ClientConfig.fill_page_tables``).
        Does nothing for memory of a device. Raises ``KeyError`` or ``IndexError``.
        """
        for run in runs:
            self._extent(run.extent_id).fill(run.slots, part)

    def copy_page(self, source: PageRef | Source, target: PageRef) -> None:
        """Copies a whole page into a page that this process may write, such as a reserved one.

        On a device the copy is queued on the current stream. For a match's source this waits
        for the copy and then compares generations (:meth:`Source.require_current`). It raises
        ``PageRecycled`` if the source was reused: drop the copy then. Loads torch; raises as
        :meth:`page_tensor` does.
        """
        page = source.page if isinstance(source, Source) else source
        self.page_tensor(target).copy_(self.page_tensor(page))
        if isinstance(source, Source):
            source.require_current()

    def recycled(self, runs: Iterable[DatedRun]) -> list[PageRef]:
        """Returns the pages of ``runs`` whose slots were reused, as ``Match.current`` compares.

        For a process that joined the lease of the holder, after it copied the pages. Without a
        session all pages count as reused.
        """
        self._connector.check_process()
        session = self._connector.session
        if session is None:
            return [PageRef(run.extent_id, slot) for run in runs for slot in run.slots]
        return PageGenerations.of(runs).recycled(session.extents.get)

    def _peek(
        self, tokens: Tokens, groups: Sequence[GroupWindow] = (), group_start_page: int = 0
    ) -> prefix_cache_pb2.PeekPrefixResponse | None:
        """Returns the store's answer; None if it fails."""
        packed = pack_tokens(tokens)
        windows = window_messages(groups)
        try:
            session = self._connector.require_session()
            namespace_id = self._opened(session).namespace_id
            with session.request(self.new_budget()) as asking:
                return asking.ask(
                    session.lease.peek,
                    namespace_id,
                    packed,
                    asking.remaining(),
                    windows=windows,
                    group_start_page=group_start_page,
                )
        except NamespaceNotFound:
            self._lost(session)
            return None
        except StoreError:
            return None

    def _match(
        self,
        session: Session,
        packed: bytes,
        budget: StoreBudget,
        *,
        accept_next_token: bool,
        windows: Sequence[prefix_cache_pb2.GroupWindow],
        group_start_page: int,
        is_base: bool,
    ) -> Match:
        opened = self._opened(session)
        pin_ids = session.take_id(), session.take_id()
        sample = ProbeSample(opened.namespace_id, packed)
        with session.request(budget, pin_ids=pin_ids, sample=sample) as asking:
            try:
                match = asking.ask(
                    session.lease.match,
                    opened.namespace_id,
                    packed,
                    pin_ids,
                    asking.remaining(),
                    accept_next_token=accept_next_token,
                    prefill_tokens_per_second=self._stated_speed(),
                    windows=windows,
                    group_start_page=group_start_page,
                    is_base=is_base,
                )
            except NamespaceNotFound:
                self._lost(session)
                raise
            pinned = match_of(session, pin_ids, match, self.layout.page_tokens)
        if pinned.hold is not None and len(match.groups) < len(windows):
            end_holds(*pinned.holds)
            raise FeatureUnsupported("this server does not know KV cache groups")
        return pinned

    def _acquire(
        self,
        session: Session,
        packed: bytes,
        total_page_count: int,
        budget: StoreBudget,
        *,
        accept_next_token: bool,
        yield_idle_ms: int | None,
    ) -> Acquired:
        opened = self._opened(session)
        ids = session.take_id(), session.take_id(), session.take_id()
        with session.request(
            budget,
            pin_ids=ids[:2],
            reservation_ids=ids[2:],
            sample=ProbeSample(opened.namespace_id, packed),
        ) as asking:
            session.settle(asking)
            try:
                answer = asking.ask(
                    session.lease.acquire,
                    opened.namespace_id,
                    packed,
                    ids,
                    total_page_count,
                    asking.remaining(),
                    accept_next_token=accept_next_token,
                    prefill_tokens_per_second=self._stated_speed(),
                    yield_idle_ms=yield_idle_ms,
                )
            except NamespaceNotFound:
                self._lost(session)
                raise
            return acquired_of(session, opened, ids, answer, budget)

    def _opened_session(self) -> tuple[Session, OpenedNamespace]:
        """Returns the session and the namespace in it; raises ``StoreError``."""
        session = self._connector.require_session()
        return session, self._opened(session)

    def _lost(self, session: Session) -> None:
        """Opens the namespace again: the store does not know it any more."""
        session.note_namespace(self._key, None)

    def _stated_speed(self) -> int:
        """Returns the engine's speed as the field has it: 0 is unknown, 1 very slow."""
        speed = self.prefill_tokens_per_second
        return int(min(max(speed, 1), MAX_SPEED)) if speed > 0 else 0

    def _extent(self, extent_id: int) -> MappedExtent:
        self._connector.check_process()
        session = self._connector.session
        mapped = None if session is None else session.extents.get(extent_id)
        if mapped is None:
            raise KeyError(extent_id)
        return mapped

    def _mapped(self) -> dict[int, MappedExtent]:
        session = self._connector.session
        opened = None if session is None else session.namespaces.get(self._key)
        if session is None or not isinstance(opened, OpenedNamespace):
            return {}
        return session.extents.of_arena(opened.arena_id)

    def _opened(self, session: Session) -> OpenedNamespace:
        """Returns the namespace in this session; raises ``StoreError`` if it is not open."""
        opened = session.namespaces.get(self._key)
        if session.ended is not None:
            raise copy(session.ended)
        if isinstance(opened, StoreError):
            raise copy(opened)
        if opened is None:
            reason = session.not_yet.get(self._key)
            why = "" if reason is None else f": {reason}"
            raise StoreUnavailable(f"the namespace is not open yet{why}")
        return opened


def idle_ms(idle: float | None) -> int:
    """Returns ``yield_idle`` as the field has it: 0 is unbounded."""
    return 0 if idle is None else min(max(round(idle * MILLISECONDS), 1), MAX_IDLE_MS)
