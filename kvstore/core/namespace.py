"""A namespace: who shares, how pages are laid out, and their index."""

from typing import TYPE_CHECKING

from kvstore.core.arena import Arena
from kvstore.core.counters import Counters
from kvstore.core.index import IndexFactory
from kvstore.core.layout import NamespaceIdentity, PageLayout
from kvstore.core.radix import RadixIndex

if TYPE_CHECKING:
    from kvstore.core.named_pin import NamedPin


class Namespace:
    """One tree of pages, and the arena that they live in.

    ``number`` counts namespaces by creation. ``detached_page_count`` counts
    pages that left the tree and are still held. ``named_pins`` stand by name.
    """

    def __init__(
        self,
        number: int,
        namespace_id: bytes,
        identity: NamespaceIdentity,
        layout: PageLayout,
        arena: Arena,
        now: float,
        index: IndexFactory = RadixIndex,
    ) -> None:
        self.number = number
        self.namespace_id = namespace_id
        self.identity = identity
        self.layout = layout
        self.arena = arena
        self.created_at = now
        self.index = index(self, layout.page_tokens)
        self.counters = Counters()
        self.detached_page_count = 0
        self.named_pins: dict[str, NamedPin] = {}

    @property
    def tenant(self) -> str:
        """The tenant that it belongs to."""
        return self.arena.tenant

    def add_named_pin(self, pin: "NamedPin") -> None:
        """Take in a named pin, under its name."""
        self.named_pins[pin.name] = pin
        self.arena.holdings.named_pin_count += 1

    def drop_named_pin(self, pin: "NamedPin") -> None:
        """Forget a named pin."""
        del self.named_pins[pin.name]
        self.arena.holdings.named_pin_count -= 1
