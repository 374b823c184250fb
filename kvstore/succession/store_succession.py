"""The succession of one store: who carries its memory, what is written about it, and its end."""

import gc
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from kvstore.core import PrefixCache
from kvstore.core.journal.journal import Journal
from kvstore.holder.carrier import (
    CarrierFailed,
    CarrierLost,
    CarrierOwned,
    CarrierRefused,
    DescriptorCarrier,
)
from kvstore.holder.holder_process import close_all
from kvstore.storage.arenas import Arenas
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.host.host_memory import HostMemory
from kvstore.succession.clean_start import CleanStart, settings_bytes
from kvstore.succession.inheritance import Estate, Inheritance, InheritedProcess, MakeCache
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.journal_memory import is_of_journal, map_journal
from kvstore.succession.journal.store_row import StoreRow
from kvstore.succession.left_memory import LeftMemory
from kvstore.succession.memory_ahead import MemoryAhead
from kvstore.succession.samples import Samples

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

EPOCH_BITS = 64
INSTANCE_BITS = 63
KEY_BYTES = 32
# Seconds that a server waits for the end of the one before, which gave up its folder already.
OWN_PATIENCE = 2.0


class SuccessionUse(NamedTuple):
    """The state of a succession at one moment. Byte counts are zero without a journal.

    ``behind`` counts the descriptors that the carrier lacks, and ``refusal`` says why it refuses
    them. ``failure`` is the reason why no later server can go on, and ``clean_start`` the reason
    why this one did not. Reasons are empty if there is nothing to say.
    """

    holder: str
    instance: int
    behind: int
    journal_used_bytes: int
    journal_capacity_bytes: int
    failure: str
    refusal: str
    recovered_page_count: int
    clean_start: str


class Succession:
    """Lets the next server go on with this one's memory, by a carrier and a journal.

    Without a carrier the memory ends with the server, and each method does nothing. ``held`` is
    for whatever makes memory. ``processes`` are those that attached to an earlier server, and
    ``samples`` prove the extents that it left.
    Thread-safe once ``begin`` returned.
    """

    def __init__(
        self,
        carrier: DescriptorCarrier | None = None,
        *,
        holder: str = "",
        settings: Mapping[str, str] | None = None,
        journal_bytes: int = 0,
    ) -> None:
        """``holder`` names the carrier for people.

        ``settings`` are those that have to be equal for the next server to go on.
        """
        self.held = HeldMemory(carrier)
        self.journal: DurableJournal | None = None
        self.processes: list[InheritedProcess] = []
        self.samples = Samples()
        self.recovered_page_count = 0
        self.clean_start = ""
        # Memory of an earlier store that counts as taken.
        self.left = LeftMemory(carrier)
        self._tiers: Sequence[Arenas] = ()
        self._carrier = carrier
        self._holder = holder
        self._settings = dict(settings or {})
        self._journal_bytes = journal_bytes
        # The wire has 0 for "no epoch".
        epoch = secrets.randbits(EPOCH_BITS) or 1
        self._store = StoreRow(
            epoch, 1, secrets.token_bytes(KEY_BYTES), settings_bytes(self._settings)
        )
        self._owned = False
        self._ahead: MemoryAhead | None = None
        self._refusal = ""
        self._why_no_journal = ""
        self._depart: Callable[[DescriptorCarrier], None] | None = None

    @property
    def credential_key(self) -> bytes:
        """The secret key of the store's credentials, which the next server has too."""
        return self._store.credential_key

    @property
    def instance(self) -> int:
        """The number of servers that had this memory, this one included."""
        return self._store.instance

    @property
    def outlives(self) -> bool:
        """True if the next server can go on with the memory."""
        return self._carrier is not None and not self.failure

    @property
    def failure(self) -> str:
        """The reason why no later server can go on, or "" if one can, or without a carrier."""
        if self.journal is None:
            return self._why_no_journal
        return self.journal.given_up or ""

    def use(self) -> SuccessionUse | None:
        """Returns the current state, or None without a carrier."""
        if self._carrier is None:
            return None
        journal = self.journal
        return SuccessionUse(
            holder=self._holder,
            instance=self.instance,
            behind=self._carrier.behind,
            journal_used_bytes=0 if journal is None else journal.used_bytes,
            journal_capacity_bytes=0 if journal is None else journal.capacity_bytes,
            failure=self.failure,
            refusal=self._refusal,
            recovered_page_count=self.recovered_page_count,
            clean_start=self.clean_start,
        )

    @property
    def owned(self) -> bool:
        """True once this server owns what the server before left."""
        return self._owned

    def finds_journal(self) -> bool:
        """Returns whether a server left a journal with the carrier, or keeps one there now.

        Raises ``CarrierFailed``.
        """
        if self._carrier is None:
            return False
        carried = self._carrier.descriptors()
        close_all(each.descriptor for each in carried.values())
        return any(is_of_journal(name) for name in carried)

    def prepare(
        self, make: MakeCache | None, clock: Callable[[], float], *, clean_seconds: float = 0.0
    ) -> None:
        """Reads what the owner has written so far, and builds the trees of its cache.

        An owner that was asked to clean its journal gets ``clean_seconds`` for that.

        ``begin`` then has only the rest to read. Writes nothing, so the owner goes on meanwhile.
        The caches of ``make`` MUST NOT write to slots. Without ``make`` it builds no trees. Raises
        ``CleanStart`` if ``begin`` could not go on with the memory, and ``CarrierFailed``.
        """
        if self._carrier is None:
            return
        began = clock()
        try:
            # As in a recovery: collections of so many objects that stay take long.
            gc.disable()
            self._ahead = MemoryAhead(self._carrier, self._settings, make, began, clean_seconds)
            if self._ahead.head_start is None:
                # What was built is circles.
                gc.collect()
            else:
                # A collection between here and the first answer would be such a long one.
                gc.freeze()
        finally:
            gc.enable()
        start = self._ahead.head_start
        log.info(
            "memory_read_ahead",
            pages=0 if start is None else start.page_count,
            seconds=round(clock() - began, 3),
        )

    def own(self, *, wait_seconds: float = OWN_PATIENCE) -> None:
        """Becomes the owner of what the server before left, before any of it is mapped.

        Does nothing if it owns already. Raises :class:`CarrierRefused` if another living process
        owns it after ``wait_seconds``, and the time that the carrier may take to answer. Without a
        carrier that answers, this server starts clean, and deposits once one does.
        """
        if self._carrier is None or self._owned:
            return
        # Holders do not compare these numbers.
        number = secrets.randbits(INSTANCE_BITS)
        try:
            self._carrier.own(number)
            self._owned = True
        except CarrierLost as lost:
            log.warning("holder_lost", why=str(lost))
        except CarrierOwned as owned:
            # It may be about to end.
            with suppress(CarrierOwned):
                self._carrier.own(number, wait_seconds=wait_seconds)
                self._owned = True
            if not self._owned:
                raise CarrierOwned(f"the memory of --holder is in use: {owned}") from owned

    def begin(
        self, tiers: Sequence[Arenas], make: MakeCache, clock: Callable[[], float]
    ) -> PrefixCache:
        """Returns the cache that the server before left, or else an empty one of a new epoch.

        ``tiers`` are the memory tiers, tier 1 first, which get its extents. ``make`` makes an
        empty cache of an epoch. Raises :class:`CarrierRefused` for descriptors that are not what
        the carrier announces.
        """
        if self._carrier is None:
            return make(self._store.store_epoch)
        self._tiers = tiers
        inherited = self._inherit(self._carrier, tiers, make, clock)
        self.count_left()
        if inherited is None:
            return self._begin_clean(make)
        cache, self.journal, self.processes, self.samples, _ = inherited
        self._store = self.journal.store
        return cache

    def restore_carrier(self) -> None:
        """Finds or starts a carrier if it is lost, and deposits what is behind. Raises nothing.

        For a thread of its own, since it may take as long as the start of a process.
        """
        if self._carrier is None:
            return
        try:
            if self._carrier.is_lost() or self._carrier.behind:
                self._carrier.restore()
        except CarrierRefused as refused:
            if str(refused) != self._refusal:
                log.warning("holder_refuses", why=str(refused))
            self._refusal = str(refused)
        else:
            self._refusal = ""

    def is_kept(self) -> bool:
        """Returns whether a carrier has all that the next server needs, after a try to restore it.

        May take as long as the start of a process.
        """
        self.restore_carrier()
        carrier = self._carrier
        return self.outlives and carrier is not None and not (carrier.is_lost() or carrier.behind)

    def count_left(self) -> bool:
        """Takes memory that an earlier store left from the budgets. Returns if some became free.

        Takes it from the lowest tier first, which serves requests the least.
        """
        rest, freed = self.left.look(), False
        for each in reversed(self._tiers):
            if isinstance(each.source, HostMemory):
                part = min(rest, each.budget_bytes)
                freed |= each.withhold(part)
                rest -= part
        return freed

    def leave_to_the_next(self, freeze: Callable[[], bool]) -> None:
        """Plans that ``leave`` yields: the memory stays for the next server.

        ``freeze`` returns True once nothing can write to the memory any more, and False if that
        takes too long. Then the ownership ends with the process.
        """

        def depart(carrier: DescriptorCarrier) -> None:
            if freeze():
                carrier.give_up(0)

        self._depart = depart

    def leave_for_good(self) -> None:
        """Plans that ``leave`` ends all deposits: the memory ends with the server."""
        self._depart = lambda carrier: carrier.end()

    def leave(self) -> None:
        """Leaves as planned, or else as a killed server does; once, after the threads ended.

        The next server may have the memory from now on.
        """
        if self._carrier is None or self._depart is None:
            return
        try:
            self._depart(self._carrier)
        except CarrierFailed as failed:
            # The end of the process ends the ownership too.
            log.warning("holder_not_told", why=str(failed))

    def close(self) -> None:
        """Ends the connection to the carrier."""
        self.left.close()
        if self._carrier is not None:
            self._carrier.close()

    def _inherit(
        self,
        carrier: DescriptorCarrier,
        tiers: Sequence[Arenas],
        make: MakeCache,
        clock: Callable[[], float],
    ) -> Inheritance | None:
        """Returns what the server before left, or None after it was dropped. Logs which."""
        if not self._owned:
            self._say_clean("no holder answers")
            return None
        began = clock()
        estate = Estate(carrier, tiers, self.left, self._ahead)
        # The trees are the cache's from now on, or nobody's.
        self._ahead = None
        try:
            inheritance = estate.inherit(self._settings, make, began)
        except CleanStart as clean:
            self._say_clean(str(clean))
        except Exception as error:
            # A later start would fail in the same way.
            self.clean_start = f"the recovery failed: {error!r}"
            log.exception("clean_start", why="the recovery failed")
        else:
            cache = inheritance.cache
            self.recovered_page_count = sum(
                each.index.page_count for each in cache.namespaces.values()
            )
            log.info(
                "store_recovered",
                pages=self.recovered_page_count,
                leases=len(cache.table.leases),
                processes=len(inheritance.processes),
                head_start=inheritance.head_start,
                seconds=round(clock() - began, 3),
            )
            return inheritance
        estate.discard()
        return None

    def _say_clean(self, why: str) -> None:
        self.clean_start = why
        log.info("clean_start", why=why)

    def _begin_clean(self, make: MakeCache) -> PrefixCache:
        """Returns an empty cache with a journal, or without one if there is no memory for it."""
        cache = make(self._store.store_epoch)
        try:
            journal = DurableJournal.create(self._map, self._journal_bytes, self._store)
        except (NotEnoughMemory, OSError, ValueError) as error:
            self._why_no_journal = f"no memory for the journal: {error}"
            log.warning("journal_refused", why=str(error))
            return cache
        journal.follow(cache)
        cache.state.journal_to(Journal(journal))
        self.journal = journal
        return cache

    def _map(self, name: str, size_bytes: int) -> memoryview:
        return map_journal(self.held.make(name, size_bytes), size_bytes)
