"""Records of namespaces: the revisions that this host knows, and its removals under way."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Final

from kvstore.remote.history.journal import JournalEntry, RemovalJournal
from kvstore.remote.secret.revisions import Revision
from kvstore.storage.page_store import Done

# Namespaces in memory at most, some kilobytes each. The others are read from the journal again.
MOST_NAMESPACES: Final = 1024


class NamespaceRecord:
    """A namespace on this host. Its fields change under the mutex of its table.

    ``known`` are the revisions that this host accepted: it heard of all removals up to them.
    ``live`` has those shards whose known revision was also seen in the engine since the start.
    """

    def __init__(self, digest: bytes, entry: JournalEntry) -> None:
        self.digest = digest
        self.known: dict[int, Revision] = dict(entry.known)
        self.live: set[int] = set()
        self.removed_at = entry.removed_at
        self.compared_at = 0.0
        """The last time, by the store's clock, at which all shards were compared."""
        self.epoch = 0
        """Grows with each removal by this host, and when it hears of one by another host."""
        self.is_owed = entry.is_owed
        """The engine has not acknowledged a removal by this host."""
        self.is_unsure = bool(entry.removed_at)
        """The engine may have forgotten a removal by this host."""
        self.unheard = 0
        """Grows with each removal by another host that is noticed."""
        self.heard = 0
        """The value of ``unheard`` up to which the store has heard of them."""
        self.answers: list[Done] = []
        self.own_removals: set[bytes] = set()
        """Names of removals that this host began to write, for the thread that writes them."""
        self.written: dict[int, Revision] = {}
        self.written_epoch = -1
        """The epoch of the removal that ``written`` are the revisions of."""
        self.use_count = 0
        self.saving = Lock()
        """Held while a thread writes the record's file."""
        self.saved_epoch = -1
        """The epoch of which the file knows."""

    @property
    def is_unheard(self) -> bool:
        """True if the store has not heard of another host's removal."""
        return self.unheard > self.heard

    @property
    def is_hidden(self) -> bool:
        """True while nothing of the namespace may be found or written."""
        return self.is_owed or self.is_unsure or self.is_unheard

    def entry(self) -> JournalEntry:
        """Returns what a restart has to know."""
        removed = {shard: each for shard, each in self.known.items() if each.counter}
        return JournalEntry(removed, self.is_owed, self.removed_at)


class RemoteNamespaces:
    """The records of the namespaces in use. Thread-safe; ``mutex`` guards the records too."""

    def __init__(self, journal: RemovalJournal, *, most: int = MOST_NAMESPACES) -> None:
        self.mutex = Lock()
        self._journal = journal
        self._most = most
        self._records: OrderedDict[bytes, NamespaceRecord] = OrderedDict()

    @contextmanager
    def record(self, digest: bytes) -> Iterator[NamespaceRecord]:
        """Provides the record of a namespace, with the mutex held."""
        with self.mutex:
            known = digest in self._records
        # The disk is read without the mutex.
        entry = JournalEntry() if known else self._journal.load(digest)
        with self.mutex:
            record = self._records.get(digest)
            if record is None:
                record = self._records[digest] = NamespaceRecord(digest, entry)
                self._forget_one(record)
            self._records.move_to_end(digest)
            yield record

    def is_current(self, record: NamespaceRecord, epoch: int) -> bool:
        """Returns True unless pages were removed since an epoch, or may be; under the mutex."""
        is_known = self._records.get(record.digest) is record
        return is_known and record.epoch == epoch and not record.is_hidden

    def load(self, digest: bytes, entry: JournalEntry) -> None:
        """Adds a namespace of the journal, at the start."""
        with self.mutex:
            self._records[digest] = NamespaceRecord(digest, entry)

    def removed(self) -> list[NamespaceRecord]:
        """Returns the records with an own removal that the engine may forget; under the mutex."""
        return [each for each in self._records.values() if each.removed_at]

    def hidden(self) -> list[NamespaceRecord]:
        """Returns the records of which nothing may be found or written; under the mutex."""
        return [each for each in self._records.values() if each.is_hidden]

    def accept(self, record: NamespaceRecord, revisions: Mapping[int, Revision]) -> None:
        """Notes revisions that this host has heard of; under the mutex."""
        record.known.update(revisions)
        record.live.update(revisions)

    def save(self, record: NamespaceRecord) -> None:
        """Writes to the journal what a restart has to know now; called without the mutex.

        Of two threads, the later one writes what it sees after the other one has written.
        """
        with record.saving:
            with self.mutex:
                epoch, entry = record.epoch, record.entry()
            if self._journal.save(record.digest, entry):
                record.saved_epoch = epoch

    def release(self, record: NamespaceRecord) -> None:
        """Notes that a page on its way ended, which kept the record in memory."""
        with self.mutex:
            record.use_count -= 1

    def _forget_one(self, newest: NamespaceRecord) -> None:
        """Forgets the record of the longest unused namespace, if that changes nothing.

        A removal counts up a record's epoch, by which pages on their way see it. Own removals are
        repeated where the engine forgot them.
        """
        if len(self._records) <= self._most:
            return
        for digest, each in self._records.items():
            is_needed = each.use_count or each.is_hidden or each.removed_at or each is newest
            if not is_needed:
                del self._records[digest]
                return
