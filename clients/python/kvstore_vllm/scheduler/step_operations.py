"""The store's operations of an engine's step, which go to it in one call for all requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from kvstore_client import Acquired, Match, ReuseHint
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.store_threads import Answers


@dataclass(frozen=True, slots=True)
class AcquirePages:
    """Pins the cached whole pages of ``token_ids``, and reserves slots for the missing ones.

    If the store is full, it reserves slots for as many of the first missing pages as possible.
    With ``yielding`` it pins and reserves nothing if another engine saves more of them.
    """

    key: RequestKey
    token_ids: Sequence[int]
    yielding: bool
    done: Callable[[Acquired | None], None]


@dataclass(frozen=True, slots=True)
class InsertPages:
    """Publishes pages ``start`` to ``end`` of a reservation. ``done`` gets whether it succeeded."""

    key: RequestKey
    token_ids: Sequence[int]
    acquired: Acquired
    start: int
    end: int
    hint: ReuseHint | None
    done: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class ReleasePages:
    """Gives pins and reservations back."""

    key: RequestKey
    held: Match | Acquired


StoreOperation: TypeAlias = AcquirePages | InsertPages | ReleasePages
# The outcome of each operation: what its ``done`` gets, and None for a release.
Outcomes: TypeAlias = Sequence[Acquired | bool | None]


class StepSender(Protocol):
    """Sends operations to a store, on a thread that may wait."""

    def run_step(self, operations: Sequence[StoreOperation]) -> Outcomes:
        """Makes operations of one namespace, in their order; returns each one's outcome."""


class StepOperations:
    """Collects the operations of a step, and sends those of each namespace together.

    One thread uses it. ``done`` of each operation is called on that thread, once, as the answers
    are delivered.
    """

    def __init__(self, work: StepSender, answers: Answers) -> None:
        self._work = work
        self._answers = answers
        self._waiting: list[StoreOperation] = []

    @property
    def are_waiting(self) -> bool:
        """True if some were added and not sent yet."""
        return bool(self._waiting)

    def add(self, operation: StoreOperation) -> None:
        """Adds an operation. The next :meth:`send` sends it."""
        self._waiting.append(operation)

    def send(self) -> None:
        """Sends what was added since the last call. Does not wait."""
        waiting, self._waiting = self._waiting, []
        parts: dict[object, list[StoreOperation]] = {}
        for each in waiting:
            parts.setdefault(each.key.namespace, []).append(each)
        for part in parts.values():
            self._answers.ask(partial(self._work.run_step, part), partial(self._answered, part))

    def close(self) -> None:
        """Sends the rest, and waits for all answers. Later operations fail, releases excepted."""
        self.send()
        self._answers.close()
        while self._waiting:
            self.send()
            self._answers.close()

    def _answered(self, operations: list[StoreOperation], outcomes: Outcomes | None) -> None:
        # Without outcomes nobody knows what the call came to.
        for number, each in enumerate(operations):
            outcome = None if outcomes is None else outcomes[number]
            if isinstance(each, InsertPages):
                each.done(bool(outcome))
            elif isinstance(each, AcquirePages):
                assert not isinstance(outcome, bool)
                each.done(outcome)
            elif outcomes is None:
                each.held.release()
