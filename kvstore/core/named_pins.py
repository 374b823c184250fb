"""Named pins: what operators keep cached, by name, whoever else comes and goes."""

from math import inf

from kvstore.core.index.node import Position
from kvstore.core.named_pin import NamedPin
from kvstore.core.namespace import Namespace
from kvstore.core.pages import release
from kvstore.core.retirement import Retirement
from kvstore.core.tiers import nearest
from kvstore.core.values.requests import Identity, NamedPinRequest
from kvstore.errors import IdReused, InvalidField, PrefixNotCached


class NamedPins(Retirement):
    """Makes and ends the named pins of all namespaces; each stands in its namespace's table."""

    _named = 0

    def pin_prefix(
        self, identity: Identity, namespace_id: bytes, request: NamedPinRequest, now: float
    ) -> int:
        """Pin what is cached of a prefix's whole pages; return how many tokens that is.

        Nothing cached: no pin is made. The same prefix under the same name again
        answers what is pinned, and its time to live is the later call's. Raises
        IdReused (the name has another prefix), PrefixNotCached (all was required
        and less is cached, or pinned), QuotaExceeded, NamespaceNotFound, or
        InvalidField for a time to live that is over at once.
        """
        namespace = self.namespace(identity, namespace_id)
        if request.ttl is not None and request.ttl <= 0:
            raise InvalidField(field="ttl", value=request.ttl, why="not more than zero")
        pages = self.length(request.tokens, 0) // namespace.layout.page_tokens
        fingerprint = hash(request.tokens[: pages * namespace.index.width])
        pin = namespace.named_pins.get(request.name)
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
            namespace.arena.holdings.require_named_pin_room()
            self._named += 1
            tiers = nearest(at)
            pin = NamedPin(self._named, namespace, at, request.name, fingerprint, now, tiers)
            namespace.add_named_pin(pin)
        pin.due = inf if request.ttl is None else now + request.ttl
        return pin.token_count

    def unpin_prefix(self, identity: Identity, namespace_id: bytes, name: str) -> None:
        """End a named pin; one that is not there succeeds. Raises NamespaceNotFound."""
        pin = self.namespace(identity, namespace_id).named_pins.get(name)
        if pin is not None:
            _end(pin)

    def expire_named_pins(self, now: float) -> list[NamedPin]:
        """End the named pins past their time to live and return them."""
        tables = [each.named_pins for each in self.namespaces.values()]
        due = [pin for table in tables for pin in table.values() if pin.due <= now]
        for pin in due:
            _end(pin)
        return due

    def visible_named_pins(self, identity: Identity, namespace_id: bytes | None) -> list[NamedPin]:
        """Return the named pins of a namespace, or of all, in the order of their making.

        Raises NamespaceNotFound.
        """
        namespaces: list[Namespace]
        if namespace_id is not None:
            namespaces = [self.namespace(identity, namespace_id)]
        else:
            namespaces = self.visible_namespaces(identity)
        pins = [pin for each in namespaces for pin in each.named_pins.values()]
        return sorted(pins, key=lambda pin: pin.hold_id)


def _end(pin: NamedPin) -> None:
    """Takes a named pin out of its namespace's table and lets go of its path."""
    pin.namespace.drop_named_pin(pin)
    release(pin.anchors)
