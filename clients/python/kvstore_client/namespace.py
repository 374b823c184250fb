"""A namespace as a program holds it: for the client's life, whatever the store does."""

from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.acquired import Acquired
from kvstore_client.connector import Connector
from kvstore_client.errors import NamespaceNotFound, StoreError, StoreUnavailable
from kvstore_client.extents import MappedExtent
from kvstore_client.hold import Hold
from kvstore_client.identity import NamespaceIdentity, NamespaceKey
from kvstore_client.layout import PageLayout
from kvstore_client.match import Match
from kvstore_client.page_ref import PageRef, pages_of
from kvstore_client.reservation import Reservation
from kvstore_client.session import OpenedNamespace, Session
from kvstore_client.source import Source
from kvstore_client.tokens import Tokens, pack_tokens

if TYPE_CHECKING:
    import torch


class Namespace:
    """Opened, in the background, in each session of its client.

    The request path (:meth:`match`, :meth:`acquire`, :meth:`reserve`) takes at
    most ``call_timeout``, never attaches, and returns at once where no store is
    attached. Any thread may use it; what it returns belongs to one thread at a
    time. All of it raises ``ForkedClient`` in a forked child.
    """

    def __init__(self, connector: Connector, key: NamespaceKey) -> None:
        self._connector = connector
        self._key = key
        connector.want(key)

    @property
    def identity(self) -> NamespaceIdentity:
        """Who may share."""
        return self._key.identity

    @property
    def layout(self) -> PageLayout:
        """How its pages are laid out."""
        return self._key.layout

    # Whether it is open.

    @property
    def failure(self) -> StoreError | None:
        """Why it is not open, such as ``LayoutMismatch``, or None where it is."""
        try:
            self._opened(self._connector.require_session())
        except StoreError as error:
            return error
        return None

    def wait_open(self, timeout: float) -> bool:
        """Wait until it is open, for ``timeout`` seconds at most; returns whether it is.

        A store that refuses it is waited for too: it may restart.
        """
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self.failure is None, timeout)

    # The request path.

    def match(self, tokens: Tokens, *, accept_next_token: bool = False) -> Match:
        """Pin the longest cached prefix of ``tokens``, less than all of them.

        With ``accept_next_token`` all of them, where their next token is stored:
        ask so where you decode greedily, without processor, penalty or grammar. A
        failure of the store is a miss with ``Match.failure``. Raises
        ``ValueError`` for tokens that are none.
        """
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            return self._match(session, packed, accept_next_token=accept_next_token)
        except StoreError as error:
            return Match(failure=error.with_traceback(None))

    def acquire(
        self, tokens: Tokens, *, total_page_count: int, accept_next_token: bool = False
    ) -> Acquired:
        """Do as :meth:`match`, and reserve the rest of ``total_page_count`` pages.

        In one round trip. The first reserved page is the place for a copy of the
        match's source. A failure of the store is a miss without a reservation.
        Raises ``ValueError`` for tokens that are none.
        """
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            return self._acquire(
                session, packed, total_page_count, accept_next_token=accept_next_token
            )
        except StoreError as error:
            return Acquired(Match(failure=error.with_traceback(None)))

    def reserve(self, *, start_page: int, page_count: int) -> Reservation:
        """Reserve slots for ``page_count`` pages from ``start_page`` on, all or none.

        Raises ``StoreError``: ``PoolExhausted``, ``StoreUnavailable`` and others.
        """
        session = self._connector.require_session()
        opened = self._opened(session)
        reservation_id = session.take_id()
        request = prefix_cache_pb2.ReservationRequest(
            reservation_id=reservation_id, start_page=start_page, page_count=page_count
        )
        with session.request(reservation_ids=(reservation_id,)) as deadline:
            session.settle(deadline)
            call, namespace_id = session.lease.reserve, opened.namespace_id
            try:
                grant = session.ask(call, namespace_id, request, deadline.remaining())
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            session.require_mapped(pages_of(grant.runs))
            hold = Hold(session, reservation_ids=(reservation_id,))
        return Reservation(hold, namespace_id, grant)

    def peek(self, tokens: Tokens) -> int:
        """Return how many tokens a match would find, in place and to copy; zero on a failure.

        Has no effect on the cache. Raises ``ValueError`` for tokens that are none.
        """
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            namespace_id = self._opened(session).namespace_id
            with session.request() as deadline:
                return session.ask(session.lease.peek, namespace_id, packed, deadline.remaining())
        except StoreError:
            return 0

    def _match(self, session: Session, packed: bytes, *, accept_next_token: bool) -> Match:
        opened = self._opened(session)
        pin_ids = session.take_id(), session.take_id()
        with session.request(pin_ids=pin_ids) as deadline:
            try:
                match = session.ask(
                    session.lease.match,
                    opened.namespace_id,
                    packed,
                    pin_ids,
                    deadline.remaining(),
                    accept_next_token=accept_next_token,
                )
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            return self._pinned(session, pin_ids, match)

    def _acquire(
        self, session: Session, packed: bytes, total_page_count: int, *, accept_next_token: bool
    ) -> Acquired:
        opened = self._opened(session)
        pin_ids, reservation_id = (session.take_id(), session.take_id()), session.take_id()
        ids = {"pin_ids": pin_ids, "reservation_ids": (reservation_id,)}
        with session.request(**ids) as deadline:
            session.settle(deadline)
            try:
                answer = session.ask(
                    session.lease.acquire,
                    opened.namespace_id,
                    packed,
                    (*pin_ids, reservation_id),
                    total_page_count,
                    deadline.remaining(),
                    accept_next_token=accept_next_token,
                )
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            session.require_mapped(pages_of(answer.grant.runs))
            match = self._pinned(session, pin_ids, answer.match)
            if not answer.HasField("grant"):
                return Acquired(match)
            hold = Hold(session, reservation_ids=(reservation_id,))
            return Acquired(match, Reservation(hold, opened.namespace_id, answer.grant))

    def _pinned(
        self, session: Session, pin_ids: tuple[int, int], match: prefix_cache_pb2.PrefixMatch
    ) -> Match:
        pin_id, source_pin_id = pin_ids
        pages = session.require_mapped(pages_of(match.runs))
        if not pages and not match.HasField("source"):
            return Match()  # a miss takes no pin
        source = None
        if match.HasField("source"):
            [page] = session.require_mapped(pages_of([match.source.page]))
            hold = Hold(session, pin_ids=(source_pin_id,), runs=[match.source.page])
            source = Source(hold, page, match.source.valid_token_count)
        return Match(
            Hold(session, pin_ids=(pin_id,), runs=match.runs),
            pages,
            match.matched_token_count,
            source=source,
            next_token=match.next_token if match.HasField("next_token") else None,
        )

    def _opened(self, session: Session) -> OpenedNamespace:
        """Return the namespace in this session; raises ``StoreError`` where it is not open."""
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

    # Memory. Pages of what is held stay mapped, also when the session ended.

    @property
    def session_number(self) -> int:
        """Changes whenever the extents that are mapped do: then build views anew.

        Read it while something is held: the memory stays as it is until then.
        A view that is kept keeps its extent mapped, also one that nobody uses
        any more.
        """
        self._connector.check_process()
        session = self._connector.session
        return 0 if session is None else session.extents.number

    @property
    def extents(self) -> Mapping[int, memoryview]:
        """The extents that are mapped, each as in :meth:`extent`, by id."""
        self._connector.check_process()
        return MappingProxyType({key: each.view() for key, each in self._mapped().items()})

    def extent(self, extent_id: int) -> memoryview:
        """Return all slots of an extent as writable bytes; raises ``KeyError``.

        Raises :class:`~kvstore_client.errors.NotHostMemory` for pages of a device,
        as every method here does that gives bytes: those have tensors alone.
        """
        return self._extent(extent_id).view()

    def page(self, page: PageRef) -> memoryview:
        """Return one page as writable bytes; raises ``KeyError`` or ``IndexError``.

        Only a reserved page that is not inserted yet may be written.
        """
        return self._extent(page.extent_id).slot(page.slot)[: self.layout.page_bytes]

    def extent_tensor(self, extent_id: int) -> "torch.Tensor":
        """Return all slots as ``[slots, *page shape]``, sharing memory; raises ``KeyError``.

        Of an opaque layout: ``[slots, page_bytes]`` of uint8.
        """
        return self._extent(extent_id).tensor(self.layout)

    def page_tensor(self, page: PageRef) -> "torch.Tensor":
        """Return one page as a tensor, as in :meth:`extent_tensor`, sharing memory."""
        return self.extent_tensor(page.extent_id)[page.slot]

    def copy_page(self, source: PageRef | Source, target: PageRef) -> None:
        """Copy all of a page into one that this process may write, such as a reserved one.

        On a device the copy is queued on the current stream. A match's source is
        waited for and looked at after it (:meth:`Source.require_current`): the
        copy is that page, or this raises ``PageRecycled`` and it is to be dropped.
        Loads torch; raises as :meth:`page_tensor` does.
        """
        page = source.page if isinstance(source, Source) else source
        self.page_tensor(target).copy_(self.page_tensor(page))
        if isinstance(source, Source):
            source.require_current()

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
