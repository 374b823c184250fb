"""Errors of the journal's memory.

::

    JournalUnusable       no start can recover from this memory
    ├── NeverCreated      create did not finish, or the memory was given up
    ├── OtherVersion      another version of the format
    ├── WrongMemory       another structure, size, place or identity
    ├── JournalDamaged    a stray write changed bytes that were committed
    └── RingFull          every record is live: the ring is too small
    RecordTooLarge        one record is larger than the ring takes
"""


class JournalUnusable(Exception):
    """No start can recover from this memory, so all of it is discarded.

    An owner that gets it from ``open`` starts clean. An owner that gets it later goes on without
    a journal, and the next start is clean.
    """


class NeverCreated(JournalUnusable):
    """The memory has no committed header: its creation did not finish, or it was given up."""


class OtherVersion(JournalUnusable):
    """The memory was written in another version of the format, which the message names."""


class WrongMemory(JournalUnusable):
    """The memory is another structure, or has another size, place or identity."""


class JournalDamaged(JournalUnusable):
    """Committed bytes are not what was written, so a stray write changed them."""


class RingFull(JournalUnusable):
    """Every record of the ring is live. A ring twice as large as its live records never is so."""


class RecordTooLarge(ValueError):
    """A record is larger than ``RecordRing.largest_bytes``; nothing was written."""
