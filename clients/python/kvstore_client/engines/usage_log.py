"""Log lines and the metric about the question if an engine uses its store."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from kvstore_client.engines.counters import note_attached

_logger = logging.getLogger(__name__)


class UsageLog:
    """Logs each change between a store that is used and one that is not. One thread uses it."""

    def __init__(self, facts: Callable[[], Mapping[str, str]], counts: "Counter[str]") -> None:
        """``facts`` returns the fields of a line, and ``counts`` gets the state for Prometheus."""
        self._facts = facts
        self._counts = counts
        self._was_usable: bool | None = None

    def note(self, *, usable: bool) -> None:
        """Logs the state if it is another one than before."""
        if usable == self._was_usable:
            return
        self._was_usable = usable
        note_attached(self._counts, attached=usable)
        if usable:
            _logger.info("kvstore_used", extra=dict(self._facts()))
        else:
            _logger.warning("kvstore_not_used", extra=dict(self._facts()))
