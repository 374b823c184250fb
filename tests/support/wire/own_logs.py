"""The lines that a test's own thread logs."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from structlog import DropEvent
from structlog.testing import capture_logs
from structlog.typing import EventDict, WrappedLogger


@contextmanager
def own_logs() -> Iterator[list[EventDict]]:
    """Captures what this thread logs in the block, and no line of another thread."""
    own = get_ident()

    def only_own(logger: WrappedLogger, name: str, line: EventDict) -> EventDict:
        del logger, name
        if get_ident() != own:
            raise DropEvent
        return line

    with capture_logs(processors=[only_own]) as lines:
        yield lines
