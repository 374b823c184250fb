"""The order that leaves stand in, whatever the policy: queues with lazy deletion.

A touch changes nothing here: an entry found out of date at the top is put back where
it belongs, so that a nomination costs O(log leaves) a victim, whatever the number of
leaves. Entries of what is a leaf no more are swept out whenever the order has doubled.
"""

from abc import ABC, abstractmethod
from itertools import count

from kvstore.core.eviction.ghosts import GhostList
from kvstore.core.eviction.nomination import Nomination
from kvstore.core.eviction.policy import Victim
from kvstore.core.eviction.queue import Entry, EntryQueue
from kvstore.core.index.usage import Tail, begin_pages, tail_of
from kvstore.core.leaf import Leaf

_new_tuple = tuple.__new__

# Below this many entries a sweep gains nothing worth its time.
SWEEP_FROM = 64
# The hot set: leaves hit so often, and last within so many uses. Nothing of it goes
# while there is anything else, as long as its entries are at most this part of all.
HOT_HITS = 8
HOT_WINDOW = 256
HOT_SHARE = 0.1
HOT = 1 << 30
# Uses are counted below this, so that a whole number of it and a use fit one exact float.
USES = 1 << 34


class LeafOrder(ABC):
    """Leaves in queues, each by rank, the lowest first. A policy says which and where.

    Where they go ``one_by_one``, a leaf's next page waits for its turn.
    """

    one_by_one = False

    def __init__(self) -> None:
        self.now = 0.0
        self.spills = False
        # The latest use of any leaf that was looked at.
        self.latest = 0
        self.queues: dict[int, EntryQueue] = {}
        self.ghosts = GhostList()
        self._numbers = count()
        self._size = 0
        # Leaves that were found in a queue of others, so far.
        self._moved = 0
        self._sweep_at = SWEEP_FROM

    # What makes a policy.

    @abstractmethod
    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the queue and the rank of a leaf that ends in ``tail``.

        Later uses MUST NOT make it lower.
        """

    def choose(self, heads: list[Entry]) -> Entry:
        """Return which of the queues' first entries goes; there is at least one."""
        return min(heads, key=_queue_of)

    # What the cache calls.

    def offer(self, leaf: Leaf) -> None:
        """Put a leaf in the order, or further to the front if it belongs there now."""
        place = self.find_place(leaf, leaf.tail())
        known = leaf.queued
        if isinstance(known, Entry) and known.queue == place[0] and known.rank <= place[1]:
            return
        self._enter(leaf, place)

    def _enter(self, leaf: Leaf, place: tuple[int, float]) -> None:
        if self._size >= self._sweep_at:
            self._sweep()
        queue, rank = place
        entry = leaf.queued = _new_tuple(Entry, (rank, next(self._numbers), queue, leaf))
        self._size += 1
        if queue not in self.queues:
            self.queues[queue] = EntryQueue()
        self.queues[queue].add(entry)

    def nominate(self, pages: int) -> list[Victim]:
        """Return victims of exactly ``pages`` pages in total, or none at all."""
        head = self._first() if pages > 0 else None
        if head is None:
            return []
        entry, tail = head
        self.take(entry)
        leaf = entry.leaf
        # Most often it has all that is wanted.
        if pages <= self.at_once(leaf, tail):
            return [_new_tuple(Victim, (leaf, pages))]
        return Nomination(self, pages).run(leaf)

    def leave(self, leaf: Leaf, pages: int, slot_count: int) -> None:
        """Remember pages that are about to go."""
        node, tail = leaf.node, leaf.tail()
        last = tail.end - pages
        while True:
            start = max(tail.start, last)
            self.ghosts.note(node, start, tail.end, self.place(leaf, tail)[0], slot_count)
            if start == last:
                return
            tail = tail_of(node, start)

    def come_back(self, leaf: Leaf, start: int, slot_count: int) -> int:
        """Note of published pages which had been evicted; count those of late."""
        if not self.ghosts.by_kind:
            return 0
        node, count = leaf.node, 0
        hint = node.hint
        for each in self.ghosts.find(node, start):
            if each.left_since <= slot_count:
                count += each.pages
            self.learn(each.kind, each.pages)
            begin_pages(node, each.start, hint._replace(returned=True))
            if each.start + each.pages < len(node.slots):
                begin_pages(node, each.start + each.pages, hint)
        return count

    def learn(self, kind: int, pages: int) -> None:
        """Take note that pages of a queue were evicted and came back."""
        del kind, pages

    # What a nomination calls.

    def find_place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the queue and the rank of a leaf, the hot set's where it belongs there."""
        last_use = tail.last_use
        self.latest = max(self.latest, last_use)
        if tail.hits >= HOT_HITS and self.latest - last_use <= HOT_WINDOW:
            known = leaf.queued
            hot = len(self.queues.get(HOT, ()))
            if hot < HOT_SHARE * self._size or (isinstance(known, Entry) and known.queue == HOT):
                return HOT, last_use
        return self.place(leaf, tail)

    def at_once(self, leaf: Leaf, tail: Tail) -> int:
        """Return how many pages of a leaf that ends in ``tail`` may go before another's turn."""
        free = tail.end - max(tail.start, leaf.held_pages)
        return 1 if self.one_by_one and free > 1 else free

    def entry_of(self, leaf: Leaf, tail: Tail) -> Entry:
        """Return the entry of a leaf that would end in ``tail``."""
        queue, rank = self.find_place(leaf, tail)
        return Entry(rank, next(self._numbers), queue, leaf)

    def _first(self) -> tuple[Entry, Tail] | None:
        """Return the entry whose turn it is, and what its leaf ends in; None without any."""
        queues = self.queues
        if len(queues) == 1:
            [queue] = queues
            head = self._head(queue)
            # What was put right may stand in another by now.
            if len(queues) == 1:
                return head
        heads = list(self.heads().values())
        if not heads:
            return None
        entry = self.choose(heads) if len(heads) > 1 else heads[0]
        return entry, entry.leaf.tail()

    def heads(self) -> dict[int, Entry]:
        """Return the first entry of each queue that has any, all of them as they should be."""
        while True:
            moved = self._moved
            heads = {}
            for queue in list(self.queues):
                head = self._head(queue)
                if head is not None:
                    heads[queue] = head[0]
            # What was put right may stand in a queue that was looked at before.
            if moved == self._moved:
                return heads

    def _head(self, queue: int) -> tuple[Entry, Tail] | None:
        entries = self.queues[queue]
        while (entry := entries.first()) is not None:
            leaf = entry.leaf
            if leaf.queued is not entry:
                entries.pop()
                self._size -= 1
            elif not leaf.is_leaf:
                self.take(entry)
            else:
                tail = leaf.tail()
                place = self.find_place(leaf, tail)
                if place == (entry.queue, entry.rank):
                    return entry, tail
                self.take(entry)
                self._enter(leaf, place)
                self._moved += place[0] != queue
        return None

    def take(self, entry: Entry) -> None:
        """Take the first entry of its queue out of the order."""
        self.queues[entry.queue].pop()
        self._size -= 1
        entry.leaf.queued = False

    def _sweep(self) -> None:
        """Drop the entries of what is a leaf no more; it is offered again if it becomes one."""
        self._size = 0
        for entries in self.queues.values():
            kept = []
            for entry in entries:
                if entry.leaf.queued is not entry:
                    continue
                if entry.leaf.is_leaf:
                    kept.append(entry)
                else:
                    entry.leaf.queued = False
            entries.replace(kept)
            self._size += len(kept)
        self._sweep_at = max(2 * self._size, SWEEP_FROM)


def _queue_of(entry: Entry) -> int:
    return entry.queue
