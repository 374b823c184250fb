"""The request path's first verb: the longest cached prefix, pinned."""

from kvstore.core.answers import match_of
from kvstore.core.caller import Caller, Identity
from kvstore.core.holds import Pin, SourcePin
from kvstore.core.lease import Lease
from kvstore.core.lookup import Found, longest
from kvstore.core.named_pins import NamedPins
from kvstore.core.namespace import Namespace
from kvstore.core.node import Position
from kvstore.core.requests import Match, MatchWishes, Sequence
from kvstore.core.tokens import matchable_pages
from kvstore.errors import IdReused


class Matching(NamedPins):
    """Finds cached prefixes for leases and pins them; counts what was found."""

    _uses = 0

    def match(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes,
        now: float,
    ) -> Match:
        """Pin the longest cached prefix and return it; a miss takes no pin."""
        lease = self.member(caller)
        return self._match(lease, self._own(lease, namespace_id), sequence, wishes, now)

    def _own(self, lease: Lease, namespace_id: bytes) -> Namespace:
        return self.namespace(Identity(lease.tenant), namespace_id)

    def _touch(self, at: Position) -> None:
        """Make ``at``'s node the most recently used; its ancestors inherit when it goes."""
        self._uses += 1
        at.node.last_use = self._uses

    def _require_alive(self, lease: Lease, wishes: MatchWishes) -> None:
        """Raise Tombstoned if a pin that a match wants was released already."""
        for each in (wishes.pin_id, wishes.source_pin_id):
            lease.pin_tombstones.require_none(each, id=each)

    def _match(
        self,
        lease: Lease,
        namespace: Namespace,
        sequence: Sequence,
        wishes: MatchWishes,
        now: float,
    ) -> Match:
        fingerprint = hash((namespace.namespace_id, sequence, wishes))
        pin_id, source_pin_id = wishes.pin_id, wishes.source_pin_id
        self._require_alive(lease, wishes)
        pin = lease.pins.get(pin_id)
        if pin is not None:
            if not isinstance(pin, Pin) or pin.fingerprint != fingerprint:
                raise IdReused(id=pin_id)
            return match_of(lease, pin)
        if source_pin_id == pin_id or source_pin_id in lease.pins:
            raise IdReused(id=source_pin_id)
        lease.require_room(wishes.hold_count)
        asked = self.length(sequence.tokens, sequence.position)
        found = longest(
            lease,
            namespace,
            sequence,
            wants_source=source_pin_id is not None,
            wants_next_token=wishes.accept_next_token,
        )
        self._count_lookup(lease, namespace, found, asked, wishes)
        if found.last.depth == 0:
            return Match(0, ())
        self._touch(found.last)
        found.last.node.hits += 1
        pin = Pin(pin_id, namespace, found.at, fingerprint, now)
        lease.add_pin(pin)
        pin.next_token = found.next_token
        if found.source is not None:
            assert source_pin_id is not None  # or no source was looked for
            valid = found.valid_token_count
            pin.source_id = source_pin_id
            lease.add_pin(SourcePin(source_pin_id, namespace, found.source, valid, now))
        return match_of(lease, pin)

    def _count_lookup(
        self, lease: Lease, namespace: Namespace, found: Found, asked: int, wishes: MatchWishes
    ) -> None:
        page_tokens = namespace.layout.page_tokens
        matchable = max(asked - 1, 0)
        if found.next_token is not None:
            matchable = asked
        elif wishes.source_pin_id is None or not namespace.layout.divides_by_token:
            matchable = matchable_pages(asked, page_tokens) * page_tokens
        for counters in (self.counters, namespace.counters, lease.counters):
            counters.count_lookup(
                asked=asked,
                matched=found.at.depth * page_tokens,
                copied=found.valid_token_count,
                matchable=matchable,
            )
            counters.next_token_count += found.next_token is not None
