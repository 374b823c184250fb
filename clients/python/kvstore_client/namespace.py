"""A namespace as a program holds it: for the client's life, whatever the store does."""

from dataclasses import replace

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.acquired import Acquired
from kvstore_client.calls.breaker import Sample
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.errors import NamespaceNotFound, StoreError
from kvstore_client.hold import Hold
from kvstore_client.identity import NamespaceKey
from kvstore_client.in_flight import InFlight
from kvstore_client.match import Match
from kvstore_client.memory.namespace_pages import NamespaceMemory
from kvstore_client.page_ref import Pages
from kvstore_client.reservation import Reservation
from kvstore_client.session.connector import Connector
from kvstore_client.session.session import Session
from kvstore_client.source import Source
from kvstore_client.tokens import Tokens, pack_tokens

# What the wire has room for.
MAX_SPEED = MAX_IDLE_MS = (1 << 32) - 1
MILLISECONDS = 1_000


class Namespace(NamespaceMemory):
    """Opened, in the background, in each session of its client.

    The request path (:meth:`match`, :meth:`acquire`, :meth:`reserve`) takes at
    most ``call_timeout`` a call, never attaches, and returns at once where no
    store is attached. All calls of a request together take at most its budget:
    that of :meth:`new_budget`, handed to each of them; without one, a match and
    a peek have one each, and so has a reservation with all that is done with it.
    Any thread may use it; what it returns belongs to one thread at a time. All of
    it raises ``ForkedClient`` in a forked child.

    ``prefill_tokens_per_second``, which may be set at any time, is how many tokens the
    engine computes in a second where nothing is cached: what the store's disk takes
    longer to give is a miss. 0: not known, and everything is loaded.
    """

    def __init__(self, connector: Connector, key: NamespaceKey) -> None:
        super().__init__(connector, key)
        self.prefill_tokens_per_second = 0.0
        connector.want(key)

    def salted(self, salt: bytes) -> "Namespace":
        """Returns the namespace that differs in its salt alone, to be opened in the background."""
        identity = replace(self.identity, salt=salt)
        return Namespace(self._connector, NamespaceKey(identity, self._key.layout))

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
        """Waits until it is open, for ``timeout`` seconds at most; returns whether it is.

        A store that refuses it is waited for too: it may restart.
        """
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self.failure is None, timeout)

    # The request path.

    def new_budget(self) -> StoreBudget:
        """Returns the time for all calls of one request, as configured."""
        return self._connector.new_budget()

    def match(
        self,
        tokens: Tokens,
        *,
        accept_next_token: bool = False,
        budget: StoreBudget | None = None,
    ) -> Match:
        """Pins the longest cached prefix of ``tokens``, less than all of them.

        With ``accept_next_token`` all of them, where their next token is stored:
        ask so where you decode greedily, without processor, penalty or grammar. A
        failure of the store is a miss with ``Match.failure``. Raises
        ``ValueError`` for tokens that are none.
        """
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            return self._match(
                session, packed, budget or self.new_budget(), accept_next_token=accept_next_token
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
        """Does as :meth:`match`, and reserve the rest of ``total_page_count`` pages.

        In one round trip. The first reserved page is the place for a copy of the
        match's source. With ``yield_to_in_flight`` nothing is pinned or reserved where
        somebody else is computing at least a page more of ``tokens`` than is cached:
        ``Acquired.in_flight`` says so. ``yield_idle`` bounds the time, in seconds, since
        that last advanced: of those who wait for a hung worker one takes over. A failure
        of the store is a miss without a reservation. Raises ``ValueError`` for tokens that
        are none.
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
                yield_idle_ms=_idle_ms(yield_idle) if yield_to_in_flight else None,
            )
        except StoreError as error:
            return Acquired(Match(failure=error.with_traceback(None)))

    def reserve(
        self, *, start_page: int, page_count: int, budget: StoreBudget | None = None
    ) -> Reservation:
        """Reserves slots for ``page_count`` pages from ``start_page`` on, all or none.

        Raises ``StoreError``: ``PoolExhausted``, ``StoreUnavailable`` and others.
        """
        session = self._connector.require_session()
        opened = self._opened(session)
        reservation_id = session.take_id()
        budget = budget or self.new_budget()
        request = prefix_cache_pb2.ReservationRequest(
            reservation_id=reservation_id, start_page=start_page, page_count=page_count
        )
        with session.request(budget, reservation_ids=(reservation_id,)) as asking:
            session.settle(asking)
            call, namespace_id = session.lease.reserve, opened.namespace_id
            try:
                [grant] = asking.ask(call, namespace_id, [request], asking.remaining())
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            session.require_mapped(Pages(grant.runs))
            hold = Hold(session, reservation_ids=(reservation_id,))
        return Reservation(hold, opened, grant, budget)

    def peek(self, tokens: Tokens) -> int:
        """Returns how many tokens a match would find, in place and to copy; zero on a failure.

        Has no effect on the cache. Raises ``ValueError`` for tokens that are none.
        """
        answer = self._peek(tokens)
        return answer.matched_token_count + answer.source_token_count

    def peek_in_flight(self, tokens: Tokens) -> InFlight | None:
        """Returns what somebody is computing of ``tokens`` beyond what is cached.

        None where nobody is, or on a failure. Has no effect. Raises ``ValueError`` for
        tokens that are none.
        """
        return InFlight.of(self._peek(tokens))

    def _peek(self, tokens: Tokens) -> prefix_cache_pb2.PeekPrefixResponse:
        packed = pack_tokens(tokens)
        try:
            session = self._connector.require_session()
            namespace_id = self._opened(session).namespace_id
            with session.request(self.new_budget()) as asking:
                return asking.ask(session.lease.peek, namespace_id, packed, asking.remaining())
        except NamespaceNotFound:
            session.note_namespace(self._key, None)
            return prefix_cache_pb2.PeekPrefixResponse()
        except StoreError:
            return prefix_cache_pb2.PeekPrefixResponse()

    def _match(
        self, session: Session, packed: bytes, budget: StoreBudget, *, accept_next_token: bool
    ) -> Match:
        opened = self._opened(session)
        pin_ids = session.take_id(), session.take_id()
        sample = Sample(opened.namespace_id, packed)
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
                )
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            return self._pinned(session, pin_ids, match)

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
        pin_ids, reservation_id = (session.take_id(), session.take_id()), session.take_id()
        with session.request(
            budget,
            pin_ids=pin_ids,
            reservation_ids=(reservation_id,),
            sample=Sample(opened.namespace_id, packed),
        ) as asking:
            session.settle(asking)
            try:
                answer = asking.ask(
                    session.lease.acquire,
                    opened.namespace_id,
                    packed,
                    (*pin_ids, reservation_id),
                    total_page_count,
                    asking.remaining(),
                    accept_next_token=accept_next_token,
                    prefill_tokens_per_second=self._stated_speed(),
                    yield_idle_ms=yield_idle_ms,
                )
            except NamespaceNotFound:
                session.note_namespace(self._key, None)
                raise
            session.require_mapped(Pages(answer.grant.runs))
            match = self._pinned(session, pin_ids, answer.match)
            if not answer.HasField("grant"):
                return Acquired(match)
            hold = Hold(session, reservation_ids=(reservation_id,))
            reservation = Reservation(hold, opened, answer.grant, budget)
            return Acquired(match, reservation)

    def _stated_speed(self) -> int:
        """Returns the engine's speed as the wire has it: 0 is not known, and 1 very slow."""
        speed = self.prefill_tokens_per_second
        return int(min(max(speed, 1), MAX_SPEED)) if speed > 0 else 0

    def _pinned(
        self, session: Session, pin_ids: tuple[int, int], match: prefix_cache_pb2.PrefixMatch
    ) -> Match:
        pin_id, source_pin_id = pin_ids
        pages = session.require_mapped(Pages(match.runs))
        in_flight = InFlight.of(match)
        if not pages and not match.HasField("source"):
            return Match(in_flight=in_flight)  # a miss takes no pin, and who yields none either
        source = None
        if match.HasField("source"):
            [page] = session.require_mapped(Pages([match.source.page]))
            hold = Hold(session, pin_ids=(source_pin_id,), runs=[match.source.page])
            source = Source(hold, page, match.source.valid_token_count)
        return Match(
            Hold(session, pin_ids=(pin_id,), runs=match.runs),
            pages,
            match.matched_token_count,
            source=source,
            next_token=match.next_token if match.HasField("next_token") else None,
            in_flight=in_flight,
        )


def _idle_ms(idle: float | None) -> int:
    """Returns a time to yield within as the wire has it: 0 is without a bound."""
    return 0 if idle is None else min(max(round(idle * MILLISECONDS), 1), MAX_IDLE_MS)
