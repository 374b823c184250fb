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
    """A call's part of its log lines. Most calls have no line, so it is made on demand."""

    def facts(self) -> dict[str, str]:
        """Returns the fields that each line of the call has."""
        ...


# The call of this thread, until the next one begins.
CALL: ContextVar[LoggedCall | None] = ContextVar("call", default=None)


LogFormat: TypeAlias = Literal["console", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def merge_call(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Adds the fields of the running call to its line; a processor of structlog."""
    del logger, name
    call = CALL.get()
    return event if call is None else {**call.facts(), **event}


class _Renderer:
    """Renders events in the current format; a change has effect at once."""

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
    # Warnings of libraries, which grpc alone writes, stay as they are.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")


def change_logging(log_format: LogFormat, level: LogLevel) -> None:
    """Sets another format and level from now on, also in loggers that were used already.

    Logging below the level costs nothing, since those methods are empty.
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
    """A stream that loses lines without an error if its reader is gone or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
