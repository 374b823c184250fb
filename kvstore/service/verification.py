"""Whether pages are as they were written: some of every answer's are read before it is given.

The bytes are read outside the store's mutex, under the pin that the match took.
"""

from collections.abc import Callable
from random import Random
from threading import Lock
from typing import TypeVar

import structlog
from xxhash import xxh3_64_intdigest

from kvstore import tracing
from kvstore.core import Caller, MatchOptions, PrefixCache
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK
from kvstore.core.verbs.verify import Inspection, PageCheck
from kvstore.errors import StoreDraining
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.storage.errors import CudaFailed
from kvstore.storage.tiers import Tiers

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# Pages that are looked at together, of an answer that has as many.
AT_ONCE = 4


class Sampler:
    """Chooses which pages are looked at: each as likely as every other, ``rate`` of all.

    Not thread-safe: used under the store's mutex. ``rng`` decides, one of its own if
    none is given.
    """

    def __init__(self, rate: float = 0.0, rng: Random | None = None) -> None:
        self.rate = rate
        self._rng = rng or Random()  # noqa: S311  # which pages, not a secret

    def pick(self, page_count: int) -> list[int]:
        """Returns some numbers below ``page_count``, in rising order.

        As many as the rate comes to, rounded up as often as keeps the average right: where
        it comes to fewer than ``AT_ONCE``, none, or so many. To look at all costs more than
        to look at another page.
        """
        wanted = self.rate * page_count
        least = min(AT_ONCE, page_count)
        if wanted < least:
            if self._rng.random() * least >= wanted:
                return []
            count = least
        else:
            count = int(wanted)
            count += self._rng.random() < wanted - count
        # At even distances, from a random one on: a draw for each takes longer than a match.
        first = int(self._rng.random() * page_count)
        return [(number * page_count + first) // count for number in range(count)]


class Verifier:
    """Gives an answer when the pages of it that were looked at are as they were written.

    ``mutex`` is the store's, under which ``cache`` may be used. Thread-safe.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        arenas: Tiers,
        sampler: Sampler,
        clock: Clock,
        removed: Callable[[], object] = lambda: None,
    ) -> None:
        """``removed`` is called, without the mutex, once pages left the index that may not return.

        The answer waits for it.
        """
        self._removed = removed
        self._cache = cache
        self._mutex = mutex
        self._arenas = arenas
        self._sampler = sampler
        self._writing = Lock()
        self._lines = LogBudget(clock)

    def answer(self, ask: Callable[[], T], caller: Caller, options: MatchOptions) -> T:
        """Return the answer of ``ask``, a match ``to_verify``; asks again while it finds bad pages.

        Calls ``ask`` under the mutex. Before each further call, a page of the last answer has left
        the index. Raises what ``ask`` and ``Verifying.settle`` raise, and StoreDraining if the
        pages' device has failed for good.
        """
        while True:
            with self._mutex:
                answer = ask()
                inspection = self._cache.inspect(caller, options, self._sampler.pick)
            if inspection is None or self._passes(inspection):
                return answer

    def _passes(self, inspection: Inspection) -> bool:
        with tracing.span("verify", pages=len(inspection.pages)):
            corrupt, read_count = self._read(inspection)
        if self._arenas.device.lost:
            with self._mutex:
                self._cache.withdraw(inspection)
            raise StoreDraining
        removed: list[PageCheck] = []
        try:
            with self._mutex:
                removed = self._cache.remove_corrupt(inspection, corrupt, read_count)
                return self._cache.settle(inspection, corrupt)
        finally:
            if corrupt:
                self._removed()
            for page in removed:
                self._log(log.error, "page_corrupt", inspection, page)

    def _read(self, inspection: Inspection) -> tuple[list[PageCheck], int]:
        """Returns the pages that cannot be trusted, and how many pages were read.

        These are pages with other bytes than were written, and pages that a working device cannot
        read. If the device has failed for good, a failed read says nothing about its pages.
        """
        corrupt, read_count = [], 0
        extent_id, reader = -1, None
        for page in inspection.pages:
            slot, _, checksum, _, _ = page
            if slot >> INDEX_BITS != extent_id:
                extent_id = slot >> INDEX_BITS
                reader = self._arenas.reader(extent_id)
            if reader is None:
                continue
            try:
                content = reader(slot & INDEX_MASK)
            except CudaFailed as error:
                if self._arenas.device.is_lost(error):
                    return [], 0
                read_count += 1
                corrupt.append(page)
                self._log(log.warning, "page_unreadable", inspection, page, why=str(error))
                continue
            if content is not None:
                read_count += 1
                if xxh3_64_intdigest(content) != checksum:
                    corrupt.append(page)
        return corrupt, read_count

    def _log(
        self,
        write: Callable[..., object],
        event: str,
        inspection: Inspection,
        page: PageCheck,
        **fields: object,
    ) -> None:
        """Logs what is wrong with a page. Never its tokens, nor its bytes.

        Few lines, for a tenant that gives wrong checksums causes them as often as it asks.
        """
        with self._writing:
            self._lines.write(
                write,
                event,
                namespace_id=inspection.namespace_id.hex(),
                extent_id=page.slot >> INDEX_BITS,
                slot=page.slot & INDEX_MASK,
                page_position=page.page_position,
                **fields,
            )
