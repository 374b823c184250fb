"""A load of pages of KV cache groups, which are read together from one page store or several."""

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import takewhile
from math import inf
from threading import Lock

from kvstore.core.tiers.group_reads import GroupRead
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.loads.load_call import LoadProgress
from kvstore.service.page_io.loads.load_source import LoadSource
from kvstore.service.page_io.loads.path_load import LoadParts
from kvstore.service.page_io.read_targets import ReadTarget, wanted_pages
from kvstore.storage.page_store import ReadAnswer


class GroupLoad:
    """Reads and publishes the pages of one :class:`GroupRead`, which it finishes. Thread-safe."""

    def __init__(self, parts: LoadParts, read: GroupRead, ended: Callable[[], None]) -> None:
        """Makes a load; ``ended`` is called under the store's mutex."""
        self.read = read
        self.progress = LoadProgress(parts.clock)
        self._parts = parts
        self._ended = ended
        self._begun = MONOTONIC()
        self._lock = Lock()
        self._checksums: list[int | None] = [None] * len(read.pages)
        self._targets: Items[ReadTarget] = ()
        # The pages of each page store that has not answered, by their places among all.
        self._asked: dict[LoadSource, list[int]] = defaultdict(list)
        for place, page in enumerate(read.pages):
            self._asked[parts.sources[page.number]].append(place)
        self._last = next(iter(self._asked))

    def next_source(self) -> LoadSource:
        """Returns a page store that has not answered, a shared one if there is any.

        After all of them answered it is the last one.
        """
        with self._lock:
            left = sorted(self._asked, key=lambda each: not each.is_shared)
        return left[0] if left else self._last

    def go_on(self) -> None:
        """Asks the page stores for the pages."""
        read = self.read
        slots = [each.slot for each in read.pages]
        try:
            self._targets = self._parts.targets.prepare(slots, read.namespace.layout.page_bytes)
        except BaseException as error:
            self._finish(())
            if not isinstance(error, OSError):
                raise
            self._parts.targets.tell(error)
            return
        self.progress.note(waits_for_shared=self.next_source().is_shared)
        for source, places in list(self._asked.items()):
            pages = [read.pages[each] for each in places]
            targets = [self._targets[each] for each in places]
            page_store = source.tier.page_store
            assert page_store is not None  # it had pages
            wanted = wanted_pages(read.namespace_digest, pages, targets)
            page_store.read(wanted, self._taker(source), inf)

    def _taker(self, source: LoadSource) -> Callable[[ReadAnswer], None]:
        return lambda answer: self._take(source, answer)

    def _take(self, source: LoadSource, answer: ReadAnswer) -> None:
        """Takes the pages of a page store, on a thread of it, and publishes all after the last."""
        source.observe(answer.byte_count, MONOTONIC() - self._begun)
        with self._lock:
            for place, checksum in zip(self._asked.pop(source), answer.checksums, strict=True):
                self._checksums[place] = checksum
            self._last = source
            is_last = not self._asked
        if not is_last:
            self.progress.note(waits_for_shared=self.next_source().is_shared)
            return
        checksums: list[int] = []
        try:
            whole = list(takewhile(lambda each: each is not None, self._checksums))
            placed = self._parts.targets.place(self._targets[: len(whole)])
            checksums = [each for each in whole[:placed] if each is not None]
        finally:
            self._finish(checksums)

    def _finish(self, checksums: Items[int]) -> None:
        """Publishes the first pages, and wakes the callers that wait for them."""
        with self._parts.mutex:
            self._parts.cache.finish_group_read(self.read, len(checksums), checksums)
            self._ended()
        self.progress.end()
