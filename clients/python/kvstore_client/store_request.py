"""One request to a store while it is under way."""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from kvstore_client.breaker import Ticket
from kvstore_client.deadline import Deadline
from kvstore_client.errors import SESSION_OVER, StoreError, StoreTimedOut, StoreUnavailable
from kvstore_client.gate import StoreGate

# Of ``call_timeout``: a call that had less, for its request's budget was nearly spent, may come too
# late with a store that is well. Several of them in a row tell something.
FAIR_SHARE = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class Sample(NamedTuple):
    """Tokens of a namespace, to ask for when it matters whether there is an answer in time."""

    namespace_id: bytes
    tokens: bytes


class StoreRequest:
    """What a request may still take, and what its calls tell of the store.

    ``asked`` is whether any call was sent. ``end`` is told where the lease is
    over. One thread uses it.
    """

    def __init__(
        self,
        gate: StoreGate,
        ticket: Ticket,
        deadline: Deadline,
        end: Callable[[StoreError], None],
        *,
        call_timeout: float,
    ) -> None:
        """``call_timeout`` is what a call has where the budget leaves it, in seconds."""
        self.asked = False
        self._gate = gate
        self._ticket = ticket
        self._deadline = deadline
        self._end = end
        self._fair = call_timeout * FAIR_SHARE
        self._given = call_timeout

    def remaining(self) -> float:
        """Return the seconds left, more than zero; raises ``StoreTimedOut`` after them.

        What is waited for next is taken to have as many.
        """
        self._given = self._deadline.remaining()
        return self._given

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call of ``LeaseCalls``; its errors are raised after their meaning is drawn.

        One that says that the lease is over ends the session. After one that was
        not answered in time the store is not asked until it answers again. Raises
        ``StoreUnavailable`` where the store said not to be asked this yet.
        """
        kind = call.__name__
        self._gate.check(kind)
        self.asked = True
        try:
            answer = call(*args, **kwargs)
        except SESSION_OVER as error:
            self._end(error)
            raise
        except StoreError as error:
            self.failed(kind, error)
            raise
        self._gate.answered(self._ticket, kind)
        return answer

    def failed(self, kind: str, error: StoreError) -> None:
        """Note that something that the request waited for failed."""
        if isinstance(error, StoreTimedOut) and self._given < self._fair:
            error = StoreUnavailable(f"{error}, of which {self._given:.2g} s were left")
        self._gate.failed(self._ticket, kind, error)
