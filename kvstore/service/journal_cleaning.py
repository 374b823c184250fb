"""The cleaning of a store's journal beside its calls."""

from collections.abc import Callable
from math import inf
from threading import Event, Lock
from time import sleep

from kvstore import background
from kvstore.service.clock import Clock
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.store_succession import Succession

# Seconds that all of it may take once ``begin`` asked. The next server waits for two seconds, and
# then reads records where they are.
WHOLE_SECONDS = 1.5


class JournalCleaning:
    """Drops what no recovery needs of a journal, a slice of records under the mutex at a time.

    ``mutex`` is the store's. ``due`` is set when ``step`` has work. Without a journal there is
    none. Thread-safe.
    """

    def __init__(self, succession: Succession, mutex: Lock, clock: Clock) -> None:
        self.due = Event()
        self._succession = succession
        self._mutex = mutex
        self._clock = clock
        # All before this place of the journal is to be cleaned, until a time.
        self._end, self._until = 0, clock()

    def step(self) -> None:
        """Makes room, as far as that is worth it, and cleans all that ``begin`` asked for."""

        def clean(journal: DurableJournal) -> bool:
            in_time = self._clock() < self._until
            return (in_time and journal.clean_before(self._end)) or journal.clean()

        self._repeat(clean)

    def begin(self) -> None:
        """Asks ``step`` to clean all that is written by now, as far as that takes a moment.

        For the next server, which is about to read the journal: records that are cleaned after
        that have to be read twice. Does nothing while that is under way.
        """
        journal, now = self._succession.journal, self._clock()
        if journal is not None and now >= self._until:
            with self._mutex:
                self._end, self._until = journal.end, now + WHOLE_SECONDS
            self.due.set()

    def finish(self, patience: float) -> None:
        """Cleans all that is written by now, in at most ``patience`` seconds.

        Calls are served meanwhile. The next server then reads less before it answers.
        """
        journal, until = self._succession.journal, self._clock() + patience
        end = 0 if journal is None else journal.end
        self._repeat(lambda journal: journal.clean_before(end), until)

    def _repeat(self, clean: Callable[[DurableJournal], bool], until: float = inf) -> None:
        """Calls ``clean`` with the journal, under the mutex, until it returns False, or a time."""
        journal = self._succession.journal
        more = journal is not None
        while more and journal is not None and self._clock() < until:
            with self._mutex:
                more = clean(journal)
            sleep(background.PAUSE)
