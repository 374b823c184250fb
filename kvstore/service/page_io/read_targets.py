"""Destinations of pages that are read: their slots, or memory of the host on the way there."""

import mmap
from collections.abc import Sequence as Items
from threading import Lock
from typing import NamedTuple

import structlog

from kvstore.core.tiers.disk_reads import ReadPage
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.page_store import PageKey, PageRead

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ReadTarget(NamedTuple):
    """The destination of a page: its slot, or memory from which it is copied to its slot."""

    slot: int
    view: memoryview
    staged: bool


class ReadTargets:
    """Finds destinations in the tiers' memory, and fills slots. Thread-safe."""

    def __init__(self, memory: Tiers, clock: Clock) -> None:
        self._memory = memory
        self._writing = Lock()
        self._lines = LogBudget(clock)

    def prepare(self, slots: Items[int], page_bytes: int) -> list[ReadTarget]:
        """Returns the destinations of pages. Raises ``OSError`` if the host has no memory."""
        views = [self._memory.view(slot) for slot in slots]
        left = sum(view is None for view in views) * page_bytes
        # Mapped memory is aligned for O_DIRECT. The number of mappings of a process is limited.
        staging = memoryview(mmap.mmap(-1, left) if left else b"")
        targets: list[ReadTarget] = []
        for slot, view in zip(slots, views, strict=True):
            if view is None:
                left -= page_bytes
                targets.append(ReadTarget(slot, staging[left : left + page_bytes], staged=True))
            else:
                targets.append(ReadTarget(slot, view, staged=False))
        return targets

    def place(self, targets: Items[ReadTarget]) -> int:
        """Copies read pages to their slots; returns how many succeeded before the first failure."""
        staged = [each for each in targets if each.staged]
        outcomes = iter(self._memory.write_all((each.slot, each.view) for each in staged))
        for number, each in enumerate(targets):
            failure = next(outcomes) if each.staged else None
            if failure is not None:
                if not (isinstance(failure, CudaFailed) and self._memory.device.is_lost(failure)):
                    self.tell(failure)
                return number
        return len(targets)

    def tell(self, failure: Exception) -> None:
        """Logs why pages were not loaded, within a budget of lines."""
        with self._writing:
            self._lines.write(log.warning, "pages_not_loaded", why=str(failure))


def wanted_pages(
    namespace: bytes, pages: Items[ReadPage], targets: Items[ReadTarget]
) -> list[PageRead]:
    """Returns the requests for pages of a namespace, by its digest."""
    return [
        PageRead(PageKey(namespace, page.digest, page.segment), [target.view])
        for page, target in zip(pages, targets, strict=True)
    ]
