"""Slots for pages that are read: FREE ones, and those of pages that are evicted for them."""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.eviction.protocol import Victim
from kvstore.core.index.usage import tail_of
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict, nominate
from kvstore.core.values.slots import Slots, SlotState

# Pages that were used within so many seconds are not evicted for pages that may not come.
RECENT_SECONDS = 60.0
# Seconds between two notes of the number of uses: a minute is 60 notes.
NOTE_SECONDS = 1.0
# The part of an arena that reads from a page store that may not keep its word take by evictions at
# a time. Such reads then cost at most an eighth of the hits.
CAREFUL_SHARE = 1 / 8


class EvictionBound(NamedTuple):
    """A limit on the pages that reads evict for their slots.

    All reads with a bound together have at most ``share`` of an arena's slots when one evicts, and
    at least one slot. A page whose last use has the number ``since`` or a later one stays.
    """

    share: float
    since: int


# The bound of reads that take FREE slots alone.
FREE_ONLY = EvictionBound(0.0, 0)


class RecentUses:
    """The numbers of uses by time, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, now: float, use_count: int) -> None:
        """Notes how many uses there were by now; to be called about each second."""
        notes = self._notes
        if notes and now - notes[-1][0] < NOTE_SECONDS:
            return
        notes.append((now, use_count))
        while len(notes) > 1 and notes[1][0] <= now - RECENT_SECONDS:
            notes.popleft()

    def since(self, now: float) -> int:
        """Returns the number of the first use that counts as recent.

        It is the first of all until there is a note of ``RECENT_SECONDS`` ago.
        """
        before = [count for noted_at, count in self._notes if noted_at <= now - RECENT_SECONDS]
        return before[-1] + 1 if before else 0


def take_targets(
    state: CacheState,
    lease: Lease | None,
    namespace: Namespace,
    count: int,
    bound: EvictionBound | None = None,
) -> Slots:
    """Returns ``count`` slots of tier 1, now MOVING, or as many as the lease may have.

    Evicts as a reservation would, or less with a ``bound``. Evicts nothing for a lease that has not
    mapped all of the arena, or without both a lease and a bound.
    """
    arena = namespace.arena
    usable = arena.lasting if lease is None else lease.usable_extents(arena)
    missing = count - arena.free_count
    if missing > 0 and usable == arena.lasting and (lease, bound) != (None, None):
        most = min(missing, arena.counts[SlotState.CACHED])
        if bound is None:
            evicted = evict(nominate(arena, most))
        else:
            room = max(int(bound.share * arena.slot_count), 1) if bound.share else 0
            evicted = _evict_old(arena, min(most, room - arena.bounded_count), bound.since)
        for counters in (state.counters, state.ended if lease is None else lease.counters):
            counters.evicted_page_count += evicted
    targets = array("Q")
    left = sum(len(arena.extents[each].available) for each in usable)
    arena.take(min(count, left), usable, targets, SlotState.MOVING)
    if bound is not None:
        arena.bounded_count += len(targets)
    if state.wanted is not None:
        state.wanted.reserved(arena, 0)
    return targets


def _evict_old(arena: Arena, pages: int, since: int) -> int:
    """Evicts nominated pages up to the first that was used ``since`` a number.

    Returns how many left the index.
    """
    victims = nominate(arena, max(pages, 0))

    def old() -> Iterator[Victim]:
        for number, victim in enumerate(victims):
            if _last_use(victim) >= since:
                # The policy has taken all of them out of its order.
                for leaf, _ in victims[number:]:
                    if leaf.is_leaf:
                        arena.policy.offer(leaf)
                return
            yield victim

    return evict(old())


def _last_use(victim: Victim) -> int:
    """Returns the latest use of a victim's pages: that of the first one, as uses reach upward."""
    leaf, pages = victim
    return tail_of(leaf.node, leaf.copy_count - pages + 1).last_use
