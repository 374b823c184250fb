"""Operations of many sequences that go to the store in one call."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.calls.circuit_breaker import ProbeSample, StoreRequest
from kvstore_client.calls.deadlines import StoreBudget, shared_budget
from kvstore_client.calls.lease_calls import fill_acquire, fill_match
from kvstore_client.errors import (
    NamespaceNotFound,
    PageRecycled,
    StoreError,
    StoreUnavailable,
    error_of_status,
)
from kvstore_client.lifecycle.session import OpenedNamespace, Session, is_unclear
from kvstore_client.namespace import Namespace, idle_ms
from kvstore_client.pages.held_pages import HeldPages, Hold, end_holds, require_not_reused
from kvstore_client.pages.match import Match, Prefetched, match_of
from kvstore_client.pages.reservation import Acquired, Inserted, Reservation, ReuseHint, acquired_of
from kvstore_client.pages.spare_slots import SpareSlots
from kvstore_client.values.kv_cache_groups import GroupInsert, GroupWindow, window_messages
from kvstore_client.values.packed_tokens import Tokens, pack_tokens
from kvstore_client.values.page_runs import Pages

# The feature of a store that runs steps.
FEATURE = "step"
# Bytes of token ids in one call, at least one operation's: half of the largest message.
MOST_TOKEN_BYTES = 8 << 20

T = TypeVar("T")
# Adds an empty message to a step and returns it.
_Add: TypeAlias = Callable[[], prefix_cache_pb2.StepOperation]


class StepOutcome(Generic[T]):
    """The outcome of one operation, known once its step ran. One thread at a time uses it."""

    def __init__(self) -> None:
        self._results: list[T] = []
        self._error: Exception | None = None

    @property
    def known(self) -> bool:
        """True once the operation succeeded or failed."""
        return bool(self._results) or self._error is not None

    def result(self) -> T:
        """Returns what the single call returns, or raises what it raises.

        Raises ``ValueError`` if the step did not run yet.
        """
        if self._error is not None:
            raise self._error
        if not self._results:
            raise ValueError(
                "the step did not run: call run, or leave its with block, before result"
            )
        return self._results[0]

    def succeed(self, result: T) -> None:
        """Notes the result; once."""
        self._results.append(result)

    def fail(self, error: Exception) -> None:
        """Notes the error; once."""
        self._error = error.with_traceback(None)


class _Sending(NamedTuple):
    """The messages of one operation, the ids that it takes, and what makes its result.

    ``bases`` hold the pages that it depends on.
    """

    messages: Sequence[prefix_cache_pb2.StepOperation]
    take: Callable[[Sequence[Any]], Any]
    pin_ids: Sequence[int] = ()
    reservation_ids: Sequence[int] = ()
    bases: Sequence[Hold] = ()


@dataclass
class _Operation(Generic[T]):
    """One operation of a step.

    ``prepare`` adds its messages to those of a session's step. ``single`` makes its single calls
    instead. ``failed`` is called with an error of the store, and returns the result if it is no
    failure to the caller. ``session`` is the one that it needs, None for any.
    """

    kind: str
    prepare: Callable[[Session, OpenedNamespace, _Add], _Sending]
    single: Callable[[], T]
    failed: Callable[[StoreError], T] | None = None
    session: Session | None = None
    budget: StoreBudget | None = None
    sample: bytes = b""
    outcome: StepOutcome[T] = field(default_factory=StepOutcome)

    def call(self) -> None:
        """Makes the operation by its single calls."""
        try:
            self.outcome.succeed(self.single())
        except Exception as error:  # noqa: BLE001 - the outcome raises it
            self.outcome.fail(error)

    def fail(self, error: StoreError) -> None:
        """Notes that the store failed or refused the operation."""
        if self.failed is None:
            self.outcome.fail(error)
        else:
            self.outcome.succeed(self.failed(error.with_traceback(None)))


class StoreStep:
    """Operations of many sequences of a namespace, sent in one call, as in an engine's step.

    Add operations, then call :meth:`run`, or leave the ``with`` block. Each operation has an
    outcome of its own, which is that of the single call, and fails by itself. They take effect in
    the order in which they were added. After an exception in the block nothing is sent, and all
    pins and reservations are still held.

    With a store that does not run steps, or for holds of an earlier session, the operations are
    single calls, one after another. A match in a step does not wait for pages on the store's disk;
    the load begins, so a later match finds them. One thread at a time uses it.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._operations: list[_Operation[Any]] = []
        self._inserting: set[int] = set()
        self._with_spare: set[int] = set()
        # The holds of the last operation, if that is a release.
        self._releasing: list[Hold] | None = None
        self._ran = False

    def match(
        self,
        tokens: Tokens,
        *,
        accept_next_token: bool = False,
        groups: Sequence[GroupWindow] = (),
        group_start_page: int = 0,
        is_base: bool = False,
        budget: StoreBudget | None = None,
    ) -> StepOutcome[Match]:
        """Adds a ``Namespace.match``. Raises ``ValueError`` for invalid tokens or groups."""
        packed, windows = pack_tokens(tokens), window_messages(groups)
        budget = budget or self._namespace.new_budget()

        def prepare(session: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
            del opened
            page_tokens = self._namespace.layout.page_tokens
            pin_ids = session.take_id(), session.take_id()
            message = add()
            fill_match(
                message.match,
                pin_ids,
                accept_next_token=accept_next_token,
                prefill_tokens_per_second=self._namespace._stated_speed(),  # noqa: SLF001 - its own
                windows=windows,
                group_start_page=group_start_page,
                is_base=is_base,
            )
            message.match.sequence.tokens = packed
            return _Sending(
                [message],
                lambda all_: match_of(session, pin_ids, all_[0].match, page_tokens),
                pin_ids,
            )

        def single() -> Match:
            return self._namespace.match(
                packed,
                accept_next_token=accept_next_token,
                groups=groups,
                group_start_page=group_start_page,
                is_base=is_base,
                budget=budget,
            )

        return self._add(
            _Operation(
                "match",
                prepare,
                single,
                lambda error: Match(failure=error),
                budget=budget,
                sample=packed,
            )
        )

    def acquire(
        self,
        tokens: Tokens,
        *,
        total_page_count: int,
        accept_next_token: bool = False,
        yield_to_in_flight: bool = False,
        yield_idle: float | None = None,
        budget: StoreBudget | None = None,
    ) -> StepOutcome[Acquired]:
        """Adds a ``Namespace.acquire``. Raises ``ValueError`` for invalid tokens."""
        packed = pack_tokens(tokens)
        charged = budget or self._namespace.new_budget()

        def prepare(session: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
            ids = session.take_id(), session.take_id(), session.take_id()
            message = add()
            fill_acquire(
                message.acquire,
                ids,
                total_page_count,
                accept_next_token=accept_next_token,
                prefill_tokens_per_second=self._namespace._stated_speed(),  # noqa: SLF001 - its own
                yield_idle_ms=idle_ms(yield_idle) if yield_to_in_flight else None,
            )
            message.acquire.sequence.tokens = packed
            return _Sending(
                [message],
                lambda all_: acquired_of(session, opened, ids, all_[0], charged),
                ids[:2],
                ids[2:],
            )

        def single() -> Acquired:
            return self._namespace.acquire(
                packed,
                total_page_count=total_page_count,
                accept_next_token=accept_next_token,
                yield_to_in_flight=yield_to_in_flight,
                yield_idle=yield_idle,
                budget=charged,
            )

        return self._add(
            _Operation(
                "acquire",
                prepare,
                single,
                lambda error: Acquired(Match(failure=error)),
                budget=charged,
                sample=packed,
            )
        )

    def prefetch(
        self, tokens: Tokens, *, budget: StoreBudget | None = None
    ) -> StepOutcome[Prefetched]:
        """Adds a ``Namespace.prefetch``. Raises ``ValueError`` for invalid tokens.

        If the store does not prefetch, the outcome is known at once and nothing is sent.
        """
        packed = pack_tokens(tokens)
        if not self._namespace.can_prefetch:
            outcome = StepOutcome[Prefetched]()
            outcome.succeed(Prefetched())
            return outcome

        def prepare(session: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
            del session, opened
            message = add()
            message.prefetch.sequence.tokens = packed
            return _Sending([message], lambda all_: Prefetched.of(all_[0]))

        return self._add(
            _Operation(
                "prefetch",
                prepare,
                lambda: self._namespace.prefetch(packed, budget=budget),
                lambda error: Prefetched(failure=error),
                budget=budget or self._namespace.new_budget(),
                sample=packed,
            )
        )

    def reserve(
        self, *, start_page: int, page_count: int, budget: StoreBudget | None = None
    ) -> StepOutcome[Reservation]:
        """Adds a ``Namespace.reserve``."""
        charged = budget or self._namespace.new_budget()

        def prepare(session: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
            reservation_id = session.take_id()
            message = add()
            message.reserve.reservations.add(
                reservation_id=reservation_id, start_page=start_page, page_count=page_count
            )

            def take(all_: Sequence[prefix_cache_pb2.ReservePagesResponse]) -> Reservation:
                [grant] = all_[0].grants
                pages = session.require_mapped(Pages(grant.runs))
                hold = Hold(session, reservation_ids=(reservation_id,))
                return Reservation(hold, opened, start_page, pages, charged)

            return _Sending([message], take, reservation_ids=(reservation_id,))

        def single() -> Reservation:
            return self._namespace.reserve(
                start_page=start_page, page_count=page_count, budget=charged
            )

        return self._add(_Operation("reserve", prepare, single, budget=charged))

    def insert(
        self,
        reservation: Reservation,
        tokens: Tokens,
        *,
        position: int,
        base: Match | Reservation | None = None,
        next_token: int | None = None,
        hint: ReuseHint | None = None,
        spare: SpareSlots | None = None,
        slot_offsets: Sequence[int] = (),
        group_pages: Iterable[GroupInsert] = (),
    ) -> StepOutcome[Inserted]:
        """Adds a ``Reservation.insert``.

        The pages MUST NOT be written any more. If one of a reservation's inserts takes spare slots,
        it is the only one of that reservation in the step. Raises ``ValueError`` otherwise.
        """
        same = id(reservation)
        if same in self._with_spare or (spare is not None and same in self._inserting):
            raise ValueError("an insert with spare slots is its reservation's only one in a step")
        self._inserting.add(same)
        if spare is not None:
            self._with_spare.add(same)
        arguments: dict[str, Any] = {
            "position": position,
            "base": base,
            "next_token": next_token,
            "hint": hint,
            "spare": spare,
            "slot_offsets": slot_offsets,
            "group_pages": list(group_pages),
        }

        def prepare(session: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
            del session, opened
            message = add()
            insertion = reservation._insertion(message.insert, tokens, **arguments)  # noqa: SLF001 - its own
            return _Sending(
                [message],
                lambda all_: reservation._inserted(insertion, all_[0]),  # noqa: SLF001 - its own
                bases=insertion.bases,
            )

        return self._add(
            _Operation(
                "insert",
                prepare,
                lambda: reservation.insert(tokens, **arguments),
                session=reservation.hold.session,
                budget=reservation.budget,
            )
        )

    def release(self, *held: HeldPages | Reservation) -> None:
        """Adds the release of matches and the abort of reservations, as their own methods do.

        If the store does not answer, the client repeats the release until it does.
        """
        holds = [hold for each in held for hold in _holds_of(each)]
        for hold in holds:
            if self._releasing is not None and self._operations[-1].session is hold.session:
                self._releasing.append(hold)
            else:
                together = [hold]
                self._add(_releases(together))
                self._releasing = together

    def run(self) -> None:
        """Waits for the device if needed, and sends everything. Call it once.

        Raises the errors of ``ClientConfig.wait_for_device``, and sends nothing then. All other
        errors are in the outcomes. Raises ``ValueError`` the second time.
        """
        if self._ran:
            raise ValueError("the step ran already: make another StoreStep")
        self._ran = True
        found = self._common_session()
        if found is None:
            for each in self._operations:
                each.call()
        else:
            session, opened = found
            if any(each.session is not None for each in self._operations):
                session.wait_for_device()
            for part in self._parts(session):
                self._send(session, opened, part)
        for each in self._operations:
            if each.kind == "release":
                each.outcome.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.run()

    def _add(self, operation: _Operation[T]) -> StepOutcome[T]:
        if self._ran:
            raise ValueError("the step ran already: make another StoreStep")
        self._releasing = None
        self._operations.append(operation)
        return operation.outcome

    def _common_session(self) -> tuple[Session, OpenedNamespace] | None:
        """Returns the session that can run the whole step, or None for single calls."""
        try:
            session, opened = self._namespace._opened_session()  # noqa: SLF001 - its own
        except StoreError:
            return None
        if FEATURE not in session.features:
            return None
        # A single insert or release needs no step. A match in a step does not wait for the disk.
        if len(self._operations) == 1 and self._operations[0].kind not in {"match", "acquire"}:
            return None
        if any(each.session not in (None, session) for each in self._operations):
            return None
        return session, opened

    def _parts(self, session: Session) -> Iterator[list[_Operation[Any]]]:
        """Yields the operations of each call, in their order, within the limits of one."""
        part: list[_Operation[Any]] = []
        size = 0
        for each in self._operations:
            size += len(each.sample)
            # A release may need two messages.
            if part and (2 * len(part) + 2 > session.max_batch_size or size > MOST_TOKEN_BYTES):
                yield part
                part, size = [], len(each.sample)
            part.append(each)
        if part:
            yield part

    def _send(
        self, session: Session, opened: OpenedNamespace, part: Sequence[_Operation[Any]]
    ) -> None:
        """Makes one call of some operations, and notes all their outcomes."""
        request = prefix_cache_pb2.RunStepRequest(namespace_id=opened.namespace_id)
        prepared: list[tuple[_Operation[Any], _Sending]] = []
        failure: StoreError = StoreUnavailable("the step was interrupted")
        try:
            for each in part:
                if each.budget is not None and each.budget.left <= 0:
                    # Its single call fails at once, and says why.
                    each.call()
                    continue
                count = len(request.operations)
                try:
                    prepared.append((each, each.prepare(session, opened, request.operations.add)))
                except (StoreError, ValueError) as error:
                    del request.operations[count:]
                    each.outcome.fail(error)
            sending = _current(prepared)
            if sending:
                self._ask(session, request, sending)
        except StoreError as error:
            failure = error
        finally:
            # Also after an interrupt, so that whatever was given up goes back.
            for each, _ in prepared:
                if not each.outcome.known:
                    each.fail(copy(failure))

    def _ask(
        self,
        session: Session,
        request: prefix_cache_pb2.RunStepRequest,
        sending: Sequence[tuple[_Operation[Any], _Sending]],
    ) -> None:
        """Sends those of ``sending`` that may be sent now, and notes their outcomes.

        ``request`` may also have messages of operations that failed before.
        """
        budgets = [each.budget for each, _ in sending if each.budget is not None]
        samples = [each.sample for each, _ in sending if each.sample]
        with (
            shared_budget(budgets or [StoreBudget(session.call_timeout)]) as budget,
            session.request(
                budget,
                pin_ids=[each for _, sent in sending for each in sent.pin_ids],
                reservation_ids=[each for _, sent in sending for each in sent.reservation_ids],
                sample=ProbeSample(request.namespace_id, samples[-1]) if samples else None,
            ) as asking,
        ):
            sending = [pair for pair in sending if _may_ask(asking, pair[0])]
            if any(each.kind in {"acquire", "reserve"} for each, _ in sending):
                session.settle(asking)
            messages = [message for _, sent in sending for message in sent.messages]
            if len(messages) < len(request.operations):
                request = prefix_cache_pb2.RunStepRequest(
                    namespace_id=request.namespace_id, operations=messages
                )
            call = session.lease.run_step
            results: Sequence[prefix_cache_pb2.StepResult] = []
            if not messages:
                pass  # none may be sent now, or the releases have no open hold
            elif any(each.kind == "insert" for each, _ in sending):
                results = session.ask_again(asking, call, request)
            else:
                results = asking.ask(call, request, asking.remaining())
            if len(results) != len(messages):
                raise StoreUnavailable(f"{len(results)} results for {len(messages)} operations")
            rest = iter(results)
            for each, sent in sending:
                answers = [next(rest) for _ in sent.messages]
                try:
                    each.outcome.succeed(sent.take(_responses(each.kind, sent, answers)))
                except StoreError as error:
                    self._refused(session, asking, each, sent, error)

    def _refused(
        self,
        session: Session,
        asking: StoreRequest,
        operation: _Operation[Any],
        sent: _Sending,
        error: StoreError,
    ) -> None:
        """Notes that one operation of an answered call failed."""
        error = asking.refused(operation.kind, error)
        if isinstance(error, NamespaceNotFound):
            self._namespace._lost(session)  # noqa: SLF001 - its own
        if is_unclear(error):
            session.give_back(pin_ids=sent.pin_ids, reservation_ids=sent.reservation_ids)
        operation.fail(error)


def _current(
    sending: list[tuple[_Operation[Any], _Sending]],
) -> list[tuple[_Operation[Any], _Sending]]:
    """Returns the operations whose bases are all current. Notes the error of every other one.

    A release in the same step marks holds as closed before the store gets it, so this compares
    closed holds too.
    """
    if not any(hold.reused_pages() for _, sent in sending for hold in sent.bases):
        return sending
    found = []
    for each, sent in sending:
        try:
            require_not_reused(sent.bases)
        except PageRecycled as error:
            each.outcome.fail(error)
        else:
            found.append((each, sent))
    return found


def _may_ask(asking: StoreRequest, operation: _Operation[Any]) -> bool:
    """Returns whether an operation may be sent now. Notes its error if it may not."""
    try:
        if operation.kind != "release":
            asking.check(operation.kind)
    except StoreUnavailable as error:
        operation.fail(error)
        return False
    return True


def _responses(
    kind: str, sent: _Sending, answers: Sequence[prefix_cache_pb2.StepResult]
) -> list[Any]:
    """Returns the responses of one operation's messages; raises the first error among them."""
    found = []
    for message, answer in zip(sent.messages, answers, strict=True):
        result = answer.WhichOneof("result")
        if result == "error":
            raise error_of_status(answer.error)
        if result is None or result != message.WhichOneof("operation"):
            raise StoreUnavailable(f"the result of a {kind} is {result}")
        found.append(getattr(answer, result))
    return found


def _holds_of(held: HeldPages | Reservation) -> list[Hold]:
    return [held.hold] if isinstance(held, Reservation) else held.holds


def _releases(holds: list[Hold]) -> _Operation[None]:
    """Returns the operation that gives ``holds`` of one session back. More may be added to them."""
    session = holds[0].session
    ended: list[Hold] = []

    def prepare(_: Session, opened: OpenedNamespace, add: _Add) -> _Sending:
        del opened
        session.check_process()
        ended.extend(dict.fromkeys(hold for hold in holds if hold.open))
        for hold in ended:
            hold.open = False
        pins, reservations = _ids_of(ended)
        most = session.max_batch_size
        messages = []
        for start in range(0, len(pins), most):
            message = add()
            message.release.pin_ids.extend(pins[start : start + most])
            messages.append(message)
        for start in range(0, len(reservations), most):
            message = add()
            message.abort.reservation_ids.extend(reservations[start : start + most])
            messages.append(message)
        return _Sending(messages, take)

    def take(_: Sequence[Any]) -> None:
        for _hold in ended:
            session.leave()

    def failed(_: StoreError) -> None:
        # The session's own sender repeats it until it is answered.
        pins, reservations = _ids_of(ended)
        session.give_back(pin_ids=pins, reservation_ids=reservations)
        take(())

    return _Operation("release", prepare, lambda: end_holds(*holds), failed, session=session)


def _ids_of(holds: Iterable[Hold]) -> tuple[list[int], list[int]]:
    """Returns the pins and the reservations of some holds."""
    pins = [each for hold in holds for each in hold.pin_ids]
    return pins, [each for hold in holds for each in hold.reservation_ids]
