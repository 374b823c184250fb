"""The log of a serving process and its engines, in the format of kvstore-server."""

import logging
import sys
from datetime import UTC, datetime


class _Lines(logging.Formatter):
    """The time in UTC and the level as kvstore-server writes them, then the logger's name."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        del datefmt
        time = datetime.fromtimestamp(record.created, UTC)
        return time.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return f"{record.asctime} [{record.levelname.lower():9}] {record.name}: {record.message}"


def log_to_stderr(level: int) -> None:
    """Writes this process's log, from ``level`` on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler])
