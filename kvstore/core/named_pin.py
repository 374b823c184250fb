"""A named pin: an operator's hold on a prefix, owned by the tenant and not by a lease."""

from math import inf

from kvstore.core.holds import Hold
from kvstore.core.index.node import Position
from kvstore.core.namespace import Namespace
from kvstore.core.tiers import Tiers


class NamedPin(Hold):
    """A hold on whole pages of the index; ``hold_id`` counts named pins by their making.

    It has one anchor and never a detached page: it ends when one of its pages is
    removed. ``fingerprint`` tells the prefix that was asked for, which may be longer
    than what is held. ``due`` is when it ends by itself, if it does.
    """

    __slots__ = ("due", "fingerprint", "name")

    def __init__(
        self,
        hold_id: int,
        namespace: Namespace,
        at: Position,
        name: str,
        fingerprint: object,
        now: float,
        tiers: Tiers = None,
    ) -> None:
        super().__init__(hold_id, namespace, now, tiers)
        self.name = name
        self.fingerprint = fingerprint
        self.due = inf
        self.stand_at(at)

    def pages_leave(self) -> bool:
        """Ends the named pin, which holds only pages of the index. Returns True."""
        self.namespace.drop_named_pin(self)
        return True

    @property
    def token_count(self) -> int:
        """Tokens held, from the sequence's beginning."""
        return self.held_end * self.namespace.layout.page_tokens
