"""Logging: structlog's events on stderr, for people or for machines."""

import logging
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import Literal, Protocol, TextIO, TypeAlias, cast

import structlog
from structlog import make_filtering_bound_logger
from structlog.typing import (
    EventDict,
    FilteringBoundLogger,
    Processor,
    ProcessorReturnValue,
    WrappedLogger,
)


class LoggedCall(Protocol):
    """A call under way, whose facts are added to its log lines. Most calls have no line."""

    def facts(self) -> dict[str, str]:
        """Returns the fields to add to each of its lines."""
        ...


# This thread's call, from its beginning to that of the next one.
CALL: ContextVar[LoggedCall | None] = ContextVar("call", default=None)


LogFormat: TypeAlias = Literal["console", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def merge_call(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Adds the facts of the call under way to a line. A processor of structlog."""
    del logger, name
    call = CALL.get()
    return event if call is None else {**call.facts(), **event}


class _Renderer:
    """Renders events in the current format. A change of ``render`` takes effect at once."""

    def __init__(self) -> None:
        self.render: Processor = structlog.processors.JSONRenderer()

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> ProcessorReturnValue:
        return self.render(logger, name, event)


_renderer = _Renderer()
# Loggers keep the class that they were made with, so a change of level replaces its methods.
_Logger = cast(
    "type[FilteringBoundLogger]", type("Logger", (make_filtering_bound_logger("debug"),), {})
)


def configure_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Sets structlog up for this process.

    Stdout stays empty. Tracebacks have no local variables, because these could be token ids. Call
    it before the first event is logged.
    """
    change_logging(log_format, level)
    structlog.configure(
        processors=[
            merge_call,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _renderer,
        ],
        wrapper_class=_Logger,
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    # Only warnings of libraries, such as grpc, in their own words.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")


def change_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Sets another format and level from now on, also in loggers that were used already.

    Logging below the level costs nothing, because those methods are empty.
    """
    _renderer.render = _json() if log_format == "json" else _console()
    for name, method in vars(make_filtering_bound_logger(level)).items():
        if not name.startswith("__"):
            setattr(_Logger, name, method)


def _json() -> Processor:
    renderer = structlog.processors.JSONRenderer()

    def render(logger: WrappedLogger, name: str, event: EventDict) -> ProcessorReturnValue:
        # The traceback as text; the console renders it by itself.
        return renderer(logger, name, structlog.processors.format_exc_info(logger, name, event))

    return render


def _console() -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


class _Unfailing:
    """A stream of lines that drops them if the reader is gone or the disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
