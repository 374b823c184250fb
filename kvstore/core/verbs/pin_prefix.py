"""Pin and unpin prefixes by name: what operators keep cached, whatever else happens."""

from hashlib import blake2b

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Position
from kvstore.core.journal.rows import Table
from kvstore.core.leases.journaling import named_pin_row
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import nearest
from kvstore.core.values.requests import Identity, NamedPinRequest
from kvstore.errors import IdReused, InvalidField, PrefixNotCached

FINGERPRINT_BYTES = 16


class PinningPrefixes:
    """Makes, lists and ends the named pins of all namespaces."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def pin_prefix(
        self, identity: Identity, namespace_id: bytes, request: NamedPinRequest, now: float
    ) -> int:
        """Pins the cached whole pages of a prefix; returns the number of their tokens.

        Makes no pin if nothing is cached. The same prefix under the same name again returns
        the pinned tokens, and sets the time to live anew. Raises IdReused (the name has
        another prefix), PrefixNotCached (all was required, and less is cached or pinned),
        QuotaExceeded or NamespaceNotFound. Raises InvalidField for a time to live that ends at
        once.
        """
        state = self._state
        namespace = state.namespace(identity, namespace_id)
        if request.ttl is not None and request.ttl <= 0:
            raise InvalidField(field="ttl", value=request.ttl, why="not more than zero")
        pages = state.length(request.tokens, 0) // namespace.layout.page_tokens
        # A digest that is the same in every process, unlike Python's hash.
        asked = request.tokens[: pages * namespace.index.width]
        fingerprint = blake2b(asked, digest_size=FINGERPRINT_BYTES).digest()
        pin = state.named_pins.of(namespace).get(request.name)
        if pin is not None and pin.fingerprint != fingerprint:
            raise IdReused(name=request.name)
        at = Position(namespace.index.root, 0)
        if pin is None:
            at = namespace.index.descend(at, request.tokens, pages)
        held = at.depth if pin is None else pin.held_end
        if request.require_all and held < pages:
            page_tokens = namespace.layout.page_tokens
            raise PrefixNotCached(cached=held * page_tokens, requested=pages * page_tokens)
        if held == 0:
            return 0
        if pin is None:
            namespace.arena.owner.require_named_pin_room()
            table, name = state.named_pins, request.name
            pin = NamedPin(table, namespace, at, name, fingerprint, now, nearest(at))
            table.add(pin)
        pin.live(now, request.ttl)
        if state.journal is not None:
            state.journal.put(Table.NAMED_PINS, pin.hold_id, named_pin_row(pin))
        return pin.token_count

    def unpin_prefix(self, identity: Identity, namespace_id: bytes, name: str) -> None:
        """Ends a named pin. An unknown name succeeds. Raises NamespaceNotFound."""
        namespace = self._state.namespace(identity, namespace_id)
        pin = self._state.named_pins.of(namespace).get(name)
        if pin is not None:
            self._state.named_pins.end(pin)

    def expire_named_pins(self, now: float) -> list[NamedPin]:
        """Ends the named pins past their time to live and returns them."""
        tables = [self._state.named_pins.of(each) for each in self._state.namespaces.values()]
        due = [pin for table in tables for pin in table.values() if pin.due <= now]
        for pin in due:
            self._state.named_pins.end(pin)
        return due

    def visible_named_pins(self, identity: Identity, namespace_id: bytes | None) -> list[NamedPin]:
        """Returns the named pins of a namespace, or of all, in the order of their making.

        Raises NamespaceNotFound.
        """
        namespaces: list[Namespace]
        if namespace_id is not None:
            namespaces = [self._state.namespace(identity, namespace_id)]
        else:
            namespaces = self._state.visible_namespaces(identity)
        tables = [self._state.named_pins.of(each) for each in namespaces]
        pins = [pin for table in tables for pin in table.values()]
        return sorted(pins, key=lambda pin: pin.hold_id)
