"""The memory of a journal among a carrier's deposits."""

from typing import Final

from kvstore.storage.host.memfd import PLAIN, fill, map_memfd

JOURNAL_NAMES: Final = "journal-"


def map_journal(descriptor: int, size_bytes: int) -> memoryview:
    """Returns memory of the journal, writable and with all pages mapped; raises ``OSError``."""
    mapping = map_memfd(descriptor, size_bytes, PLAIN)
    fill(descriptor, mapping, 0, size_bytes, 1)
    return memoryview(mapping)


def is_of_journal(name: str) -> bool:
    """Returns whether a name is that of the journal's memory."""
    return name.startswith(JOURNAL_NAMES)
