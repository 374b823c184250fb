"""The promises of a cache: its pages, its holds and its slots, as plain values."""

from typing import NamedTuple, TypeAlias

from kvstore.core.cache import PrefixCache
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Position
from kvstore.core.index.radix import path_tokens, subtree
from kvstore.core.leases.holds import Pin, Reservation, SourcePin
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, SlotState

# A namespace's id, a tier and the tokens of a path. A page of a group has its marker at the end.
Place: TypeAlias = tuple[bytes, int, bytes]


class Copy(NamedTuple):
    """The copy of a page: its slot, the slot's generation, and the checksum."""

    slot: int
    generation: int
    checksum: int


class HeldPages(NamedTuple):
    """A pin: its slots and its tokens, those of its groups, and the rest of its answer."""

    slots: tuple[int, ...]
    tokens: bytes
    groups: tuple[object, ...]
    details: tuple[object, ...]


class ReservedSlots(NamedTuple):
    """A reservation: its own slots, what it holds, and how far it got."""

    own: frozenset[int]
    slots: tuple[int, ...]
    tokens: bytes
    details: tuple[object, ...]


class Snapshot:
    """A cache at one time.

    ``emptying`` are the extents whose retirement is under way. Recovery ends it.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.pages: dict[Place, Copy] = {}
        self.ends: dict[tuple[bytes, bytes], int] = {}
        self.pins: dict[tuple[int, int], HeldPages] = {}
        self.reservations: dict[tuple[int, int], ReservedSlots] = {}
        self.named: dict[tuple[bytes, str], tuple[object, ...]] = {}
        self.states: dict[int, SlotState] = {}
        self.emptying = {each for arena in cache.arenas.values() for each in arena.emptying}
        self.counts = {each.arena_id: list(each.counts) for each in cache.arenas.values()}
        for namespace in cache.namespaces.values():
            self._add_pages(namespace)
            for name, pin in cache.state.named_pins.of(namespace).items():
                key = (namespace.namespace_id, name)
                self.named[key] = (tuple(pin.slots()), pin.tokens(), pin.ttl, pin.fingerprint)
        for lease in cache.table.leases.values():
            for hold in lease.pins.values():
                self.pins[lease.number, hold.hold_id] = _pin(hold)
            for reservation in lease.reservations.values():
                key = (lease.number, reservation.hold_id)
                self.reservations[key] = _reservation(reservation)
        for arena in cache.arenas.values():
            for extent in arena.extents.values():
                base = extent.extent_id << INDEX_BITS
                for index, state in enumerate(extent.states):
                    self.states[base | index] = SlotState(state)

    @property
    def slots(self) -> set[tuple[int, int]]:
        """The slots of all pages, with their generations."""
        return {(copy.slot, copy.generation) for copy in self.pages.values()}

    def is_leaving(self, place: Place) -> bool:
        """Returns whether a page is in an extent that retires, or continues such a page."""
        namespace_id, _, tokens = place
        return any(
            copy.slot >> INDEX_BITS in self.emptying
            and other[0] == namespace_id
            and tokens.startswith(other[2])
            for other, copy in self.pages.items()
        )

    def _add_pages(self, namespace: Namespace) -> None:
        index, extents = namespace.index, namespace.extents
        for node in subtree(index.root):
            if has_left(node):
                # Nobody finds a condemned page, and no recovery does.
                continue
            above = path_tokens(Position(node, 0), index.width)
            for copies in node.leaves():
                for number, slot in enumerate(copies.copied()):
                    end = min((number + 1) * index.width, len(node.edge))
                    place = (namespace.namespace_id, copies.tier, above + node.edge[:end])
                    extent, at = extents[slot >> INDEX_BITS], slot & INDEX_MASK
                    self.pages[place] = Copy(slot, extent.generations[at], extent.checksums[at])
            for depth, tail in node.next_tokens or ():
                token = node.next_tokens.find(depth, tail) if node.next_tokens else None
                assert token is not None
                tokens = above + node.edge[: (depth - node.start) * index.width] + tail
                self.ends[namespace.namespace_id, tokens] = token


def _pin(pin: Pin | SourcePin) -> HeldPages:
    if isinstance(pin, SourcePin):
        return HeldPages(tuple(pin.slots()), pin.tokens(), (), (pin.valid_token_count,))
    groups = tuple((tuple(held), tuple(slots)) for held, slots in pin.group_slots())
    details = (pin.next_token, pin.source_id)
    return HeldPages(tuple(pin.slots()), pin.tokens(), groups, details)


def _reservation(each: Reservation) -> ReservedSlots:
    details = (
        *(each.start_page, each.inserted, each.tail_token_count, each.whole_end),
        *(tuple(each.reserved), bytes(each.published), tuple(each.duplicates)),
        tuple(sorted(each.group_pages.items())),
    )
    own = frozenset(each.unpublished())
    return ReservedSlots(own, tuple(each.slots()), each.tokens(), details)
