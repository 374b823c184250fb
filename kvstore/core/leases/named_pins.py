"""Named pins: an operator's holds on prefixes, owned by a tenant and not by a lease."""

from collections.abc import Mapping
from math import inf

from kvstore.core.index.node import Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.rows import Table
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import release
from kvstore.core.pool.placement import Tiers


class NamedPin(Hold):
    """A hold on whole pages of the index. ``hold_id`` counts named pins in order of making.

    It has one anchor and never a detached page, since it ends when one of its pages is
    removed. ``fingerprint`` identifies the prefix that was asked for, which may be longer
    than what is held. ``due`` is the time at which the pin ends by itself, or infinity, and
    ``ttl`` the seconds from when that was set. A page store that hosts share had the first
    ``stored_end`` pages when it was last asked.
    """

    __slots__ = ("_table", "due", "fingerprint", "name", "stored_end", "ttl")

    def __init__(
        self,
        table: "NamedPinTable",
        namespace: Namespace,
        at: Position,
        name: str,
        fingerprint: bytes,
        now: float,
        tiers: Tiers = None,
    ) -> None:
        super().__init__(table.next_number(), namespace, now, tiers)
        self.name = name
        self.fingerprint = fingerprint
        self.due = self.ttl = inf
        self.stored_end = 0
        self._table = table
        self.stand_at(at)

    def live(self, now: float, ttl: float | None) -> None:
        """Ends by itself ``ttl`` seconds from ``now``, or never."""
        self.ttl = inf if ttl is None else ttl
        self.due = now + self.ttl

    def pages_leave(self) -> bool:
        """Ends the named pin, which holds only pages of the index. Returns True."""
        self._table.drop(self)
        return True

    @property
    def token_count(self) -> int:
        """The number of tokens held, from the sequence's beginning."""
        return self.held_end * self.namespace.layout.page_tokens


class NamedPinTable:
    """The named pins of every namespace, by name. Not thread-safe.

    ``last_number`` is that of the latest one made.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[Namespace, dict[str, NamedPin]] = {}
        self._journal: Journal | None = None
        self.last_number = 0

    def journal_to(self, journal: Journal | None) -> None:
        """Writes what changes from now on to a journal."""
        self._journal = journal

    def of(self, namespace: Namespace) -> Mapping[str, NamedPin]:
        """Returns a namespace's named pins by name, in the order of their making."""
        return self._by_namespace.get(namespace, {})

    def add(self, pin: NamedPin) -> None:
        """Adds a named pin, and counts it for its namespace and its tenant."""
        self._by_namespace.setdefault(pin.namespace, {})[pin.name] = pin
        pin.namespace.named_pin_count += 1
        pin.namespace.arena.owner.named_pin_count += 1

    def drop(self, pin: NamedPin) -> None:
        """Removes a named pin, whose anchors stay for the caller to release."""
        if self._journal is not None:
            self._journal.clear(Table.NAMED_PINS, pin.hold_id)
        table = self._by_namespace[pin.namespace]
        del table[pin.name]
        if not table:
            del self._by_namespace[pin.namespace]
        pin.namespace.named_pin_count -= 1
        pin.namespace.arena.owner.named_pin_count -= 1

    def end(self, pin: NamedPin) -> None:
        """Removes a named pin and releases its path."""
        self.drop(pin)
        release(pin.anchors)

    def next_number(self) -> int:
        """Returns the number of the next named pin."""
        self.last_number += 1
        return self.last_number
