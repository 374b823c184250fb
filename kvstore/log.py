"""Logging: structlog's events on stderr, for people or for machines."""

import logging
import sys
from contextlib import suppress
from typing import Literal, TextIO, TypeAlias, cast

import structlog
from structlog.typing import Processor

LogFormat: TypeAlias = Literal["console", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def configure_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Set structlog up for this process.

    Stdout stays empty. Tracebacks come without local variables, which could be
    token ids. Only effective before the first event is logged.
    """
    renderer: Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    # JSON has the traceback as text; the console renders it by itself.
    tracebacks: list[Processor] = (
        [structlog.processors.format_exc_info] if log_format == "json" else []
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    # Of the libraries, grpc's complaints alone, and in their own words.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")


class _Unfailing:
    """A stream of lines whose reader may be gone, or whose disk full: then they are lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
