"""The log of a connector and its client, among the engine's own lines."""

import logging
from copy import copy
from typing import Final

# The client's logger, and the fields that every log record has.
CLIENT: Final = "kvstore_client"
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_with(engine: logging.Logger, connector: str) -> None:
    """Writes all events to the streams of ``engine``, in its format and from its level on.

    ``connector`` is the name of the connector's logger. It acts once, and not on loggers that
    already have a setup. Without handlers of the engine nothing is written.
    """
    for name in (connector, CLIENT):
        logger = logging.getLogger(name)
        if logger.handlers:
            continue
        for each in engine.handlers:
            if isinstance(each, logging.StreamHandler):
                handler = logging.StreamHandler(each.stream)
                handler.setFormatter(_WithFields(each.formatter or logging.Formatter()))
                logger.addHandler(handler)
        if logger.handlers:
            logger.setLevel(engine.getEffectiveLevel())
            logger.propagate = False


class _WithFields(logging.Formatter):
    """An engine's format, with an event's fields after its name.

    Handlers of other logs see the same record, so a copy is changed.
    """

    def __init__(self, engine: logging.Formatter) -> None:
        super().__init__()
        self._engine = engine

    def format(self, record: logging.LogRecord) -> str:
        names = [name for name in vars(record) if name not in _PLAIN and not name.startswith("_")]
        fields = "".join(f" {name}={getattr(record, name)}" for name in names)
        changed = copy(record)
        changed.msg, changed.args = f"{record.getMessage()}{fields}", None
        return self._engine.format(changed)
