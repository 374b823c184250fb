"""The call under way, as its lines in the log name it."""

from contextvars import ContextVar
from typing import Protocol


class LoggedCall(Protocol):
    """What a line of the log says of a call, put together when there is a line: most have none."""

    def facts(self) -> dict[str, str]:
        """Return what its lines say besides."""
        ...


# Of this thread, from a call's beginning to that of the next one.
CALL: ContextVar[LoggedCall | None] = ContextVar("call", default=None)
