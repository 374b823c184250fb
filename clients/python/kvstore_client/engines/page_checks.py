"""A thread that asks the store for the pages that an engine has announced."""

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Final, Generic, TypeVar

from kvstore_client.engines.announced_pages import AnnouncedPages

Place = TypeVar("Place")

_logger = logging.getLogger(__name__)

# Seconds between two rounds, and the paths of a round: a path is checked within as many seconds as
# there are rounds of paths. A check takes a call of some 0.3 ms.
ROUND_SECONDS: Final = 1.0
PATHS_A_ROUND: Final = 32


class PageChecks(Generic[Place]):
    """Withdraws announced pages that left the store, which tells no engine of it.

    A round checks the paths that were seen longest ago. While the store is away all pages are
    withdrawn: nothing of them can be loaded.

    - ``cached_pages`` returns how many pages of a place's path the store has; None if it did not
      answer. It is called with the path's packed tokens.
    - ``usable`` returns whether the engine uses the store.
    """

    def __init__(
        self,
        pages: AnnouncedPages[Any, Place, Any],
        cached_pages: Callable[[Place, bytes], int | None],
        usable: Callable[[], bool],
    ) -> None:
        self._pages = pages
        self._cached_pages = cached_pages
        self._usable = usable
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="kvstore-page-checks", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the call under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Makes a round."""
        if not self._usable():
            self._pages.clear()
            return
        for path in self._pages.oldest_paths(PATHS_A_ROUND):
            if self._stopping.is_set():
                return
            found = self._cached_pages(path.place, path.tokens)
            if found is None:
                return
            self._pages.checked(path, found)

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_SECONDS):
            try:
                self.check()
            except Exception:  # announced pages may be wrong, and nothing else
                _logger.exception("page_check_failed")
