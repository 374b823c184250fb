"""The memory of a store that is still at work, as the server that is to replace it reads it."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from kvstore.core import PrefixCache
from kvstore.core.journal.rows import Table
from kvstore.core.recovery.head_start import HeadStart
from kvstore.core.recovery.written import JournalContents
from kvstore.core.values.slots import Generations
from kvstore.holder.carrier import CarriedDescriptor, DescriptorCarrier
from kvstore.holder.holder_process import DescriptorIdentity, close_all
from kvstore.ring import JournalUnusable
from kvstore.storage.held_memory import table_name
from kvstore.succession.clean_start import CleanStart, require_equal
from kvstore.succession.journal.journal_ahead import JournalAhead
from kvstore.succession.journal.journal_memory import is_of_journal, map_journal

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class MemoryAhead:
    """A journal that was read beside its writer, and the trees that were built from it.

    ``memories`` are those of the journal, which the next owner goes on with. ``head_start`` is None
    if none was wanted, or if what was read did not fit together. Writes nothing.
    """

    def __init__(
        self,
        carrier: DescriptorCarrier,
        settings: Mapping[str, str],
        make: Callable[[int], PrefixCache] | None,
        now: float,
        clean_seconds: float = 0.0,
    ) -> None:
        """Raises ``CleanStart`` if the next server could not go on, and ``CarrierFailed``.

        Without ``make`` it builds no trees. Waits ``clean_seconds`` at most until the writer has
        cleaned the journal: records that are cleaned later have to be read anew.
        """
        carried = carrier.descriptors()
        try:
            journal = {name: each for name, each in carried.items() if is_of_journal(name)}
            self._identities = _identities(journal)
            self.memories = {
                name: map_journal(each.descriptor, each.identity.size_bytes)
                for name, each in journal.items()
            }
            self.head_start: HeadStart | None = None
            try:
                self.journal = JournalAhead(self.memories)
                self.journal.wait_cleaned(clean_seconds)
                store, contents = self.journal.contents()
            except JournalUnusable as error:
                raise CleanStart(f"the journal is unusable: {error}") from error
            require_equal(store.settings, settings)
            if make is not None:
                tables = {
                    extent_id: _table(carried[table_name(extent_id)])
                    for extent_id in contents.rows[Table.EXTENTS]
                    if isinstance(extent_id, int) and table_name(extent_id) in carried
                }
                self.head_start = _begun(contents, tables, partial(make, store.store_epoch), now)
        finally:
            close_all(each.descriptor for each in carried.values())

    def is_of(self, journal: Mapping[str, CarriedDescriptor]) -> bool:
        """Returns whether the journal of a later moment is still in the same memory."""
        return _identities(journal) == self._identities


def _begun(
    contents: JournalContents,
    tables: Mapping[int, Generations],
    make: Callable[[], PrefixCache],
    now: float,
) -> HeadStart | None:
    """Returns a head start, or None if what was read does not fit together."""
    try:
        return HeadStart(contents, tables, make, now)
    except (KeyError, ValueError) as error:
        log.info("head_start_failed", why=repr(error))
    except Exception as error:
        # The recovery does not depend on it, nor does the server that is at work.
        log.exception("head_start_failed", why=repr(error))
    return None


def _identities(journal: Mapping[str, CarriedDescriptor]) -> dict[str, DescriptorIdentity]:
    return {name: each.identity for name, each in journal.items()}


def _table(carried: CarriedDescriptor) -> Generations:
    """Returns the generations of an extent, which nobody can write by them."""
    size_bytes = carried.identity.size_bytes
    mapping = mmap.mmap(carried.descriptor, size_bytes, prot=mmap.PROT_READ)
    return memoryview(mapping).cast("Q")
