"""Caches of one namespace, built page by page without sockets, and their timed calls."""

from array import array
from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import TypeVar

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Position
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.index.usage import note_use
from kvstore.core.leases.holds import Pin
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict, let_go, publish, release
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from kvstore.core.values.slots import Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES

PAGE_TOKENS = 16
WIDTH = TOKEN_BYTES * PAGE_TOKENS
LEAF_PAGES = 4
NOW = 100.0
# Above all tokens of prompts, so that forks and leaves share no first token with them.
OTHER = 1 << 24
T = TypeVar("T")


def sequence(begin: int, tokens: int) -> bytes:
    """Returns the bytes of ``tokens`` token ids from ``begin`` on."""
    return array("I", range(begin, begin + tokens)).tobytes()


def timed(seconds: float, prepare: Callable[[], T], call: Callable[[T], object]) -> list[float]:
    """Returns the microseconds of each call for that many seconds, without the preparation."""
    took: list[float] = []
    end = perf_counter() + seconds
    while not took or perf_counter() < end:
        argument = prepare()
        begun = perf_counter()
        call(argument)
        took.append((perf_counter() - begun) * 1e6)
    return took


class Tree:
    """A cache with one lease and one namespace, and memory for ``pages`` pages."""

    def __init__(self, pages: int, index: IndexFactory = RadixIndex) -> None:
        owner = Identity("bench")
        self.cache = PrefixCache(7, Limits(), index=index)
        self.caller = Caller(owner, b"l" * 16, b"secret", 7)
        self.cache.grant(self.caller, ttl=None, display_name="", features=(), now=NOW)
        self.cache.bind(self.caller, process_id=1, pid=1, uid=1)
        layout = PageLayout(PAGE_TOKENS, WIDTH, 1, OpaqueContent(b"bench"))
        self._layout = layout
        self.namespace = self.open(0)
        self.arena = self.namespace.arena
        self.add_memory(pages)
        self.index = self.namespace.index
        self.root = Position(self.index.root, 0)
        self._numbers = count(1)
        self._next = OTHER

    def open(self, number: int) -> Namespace:
        """Opens a namespace of its own for each number."""
        name = number.to_bytes(16, "little")
        identity = NamespaceIdentity(name)
        return self.cache.open_namespace(self.caller, identity, self._layout, name, NOW)

    def take(self, pages: int) -> Slots:
        """Reserves slots."""
        slots = array("Q")
        self.arena.take(pages, self.arena.extents, into=slots)
        return slots

    def add_memory(self, pages: int) -> None:
        """Adds memory for that many pages."""
        extent_id = len(self.arena.extents) + 1
        self.cache.add_extent(self.arena.arena_id, extent_id, pages)
        self.cache.acknowledge(1, [extent_id])

    def walk(self, tokens: bytes) -> Position:
        """Matches a prompt's whole pages in the index, and records the use."""
        at = self.index.descend(self.root, tokens, len(tokens) // WIDTH)
        note_use(*at, next(self._numbers))
        return at

    def add(self, tokens: bytes, slots: "Slots | None" = None) -> Position:
        """Publishes the part of a prompt that is not cached, and records the use."""
        pages = len(tokens) // WIDTH
        at = self.index.descend(self.root, tokens, pages)
        fresh = pages - at.depth
        if fresh:
            taken = self.take(fresh) if slots is None else slots
            at = publish(self.namespace, at, tokens[at.depth * WIDTH :], taken)[0]
        note_use(*at, next(self._numbers))
        self.arena.policy.offer(at.node)
        return at

    def grow(self, at: Position, tokens: bytes) -> Position:
        """Publishes pages after ``at`` as a node of their own, and records the use."""
        pages = len(tokens) // WIDTH
        hold = self.hold(at)
        end = publish(self.namespace, at, tokens, self.take(pages))[0]
        if end.node is at.node:
            self.index.split(end.node, at.pages)
            end = Position(end.node, pages)
        note_use(*end, next(self._numbers))
        self.arena.policy.offer(end.node)
        let_go(hold.anchors)
        return end

    def hold(self, at: Position) -> Pin:
        """Holds a path."""
        return Pin(next(self._numbers), self.namespace, at, None, NOW)

    def let_go(self, hold: Pin) -> None:
        """Releases a path, like a lease."""
        release(hold.anchors)

    def add_leaf(self, pages: int = LEAF_PAGES) -> Position:
        """Publishes a prompt without a shared prefix."""
        begin, self._next = self._next, self._next + pages * PAGE_TOKENS
        return self.add(sequence(begin, pages * PAGE_TOKENS))

    def add_leaves(self, leaves: int) -> None:
        """Publishes many leaves at once, by the index itself."""
        slots = self.take(leaves * LEAF_PAGES)
        self.arena.change(slots, SlotState.RESERVED, SlotState.CACHED)
        # They differ in their first token alone.
        rest = sequence(1, LEAF_PAGES * PAGE_TOKENS - 1)
        for first in range(0, len(slots), LEAF_PAGES):
            begin, self._next = self._next, self._next + LEAF_PAGES * PAGE_TOKENS
            tokens = begin.to_bytes(TOKEN_BYTES, "little") + rest
            at = self.index.extend(self.root, tokens, slots[first : first + LEAF_PAGES])
            note_use(*at, next(self._numbers))
            self.arena.policy.offer(at.node)

    def add_chain(self, tokens: int, nodes: int) -> bytes:
        """Publishes a prompt from which others fork, so that it has that many nodes. Returns it."""
        prompt = sequence(0, tokens)
        self.add(prompt)
        step = -(-tokens // nodes // PAGE_TOKENS) * WIDTH
        for end in range(step, len(prompt), step):
            begin, self._next = self._next, self._next + PAGE_TOKENS
            self.add(prompt[:end] + sequence(begin, PAGE_TOKENS))
        return prompt

    def evict(self, pages: int) -> int:
        """Evicts that many pages, like a reservation that lacks room."""
        return evict(self.arena.policy.nominate(pages))

    def match_verb(self, tokens: bytes) -> None:
        """Matches like a caller, with pin and answer, and releases."""
        pin_id = next(self._numbers)
        options = MatchOptions(pin_id)
        self.cache.match(self.caller, self.namespace.namespace_id, Sequence(tokens), options, NOW)

    def release(self) -> None:
        """Releases and forgets all pins."""
        lease = self.cache.table.find(self.caller)
        self.cache.release(self.caller, list(lease.pins), NOW)
        self.cache.expire(NOW)
