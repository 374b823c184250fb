"""Bytes that outlive the server: a ring of records, and the header of each memory.

Everything here works on writable memory that the caller gives and that survives the process. It
knows nothing of pages, uses no clock, thread or system call, and is used under one mutex.

A killed process leaves its writes in program order, and each aligned store of eight bytes whole
or not at all. Therefore each structure writes the word that commits a change last. Sums find
stray writes: any damage makes the whole memory unusable, which is :class:`JournalUnusable`.
"""

from kvstore.ring.errors import (
    JournalDamaged,
    JournalUnusable,
    NeverCreated,
    OtherVersion,
    RecordTooLarge,
    RingFull,
    WrongMemory,
)
from kvstore.ring.record_ring import RecordRing, RingRecord
from kvstore.ring.ring_follower import RingFollower
from kvstore.ring.ring_reader import ReadRecord

__all__ = [
    "JournalDamaged",
    "JournalUnusable",
    "NeverCreated",
    "OtherVersion",
    "ReadRecord",
    "RecordRing",
    "RecordTooLarge",
    "RingFollower",
    "RingFull",
    "RingRecord",
    "WrongMemory",
]
