"""The request path's first verb: the longest cached prefix, pinned."""

from math import inf

from kvstore.core.answers import match_of
from kvstore.core.holds import Pin, SourcePin, Unanswered
from kvstore.core.index.node import Position
from kvstore.core.index.usage import note_use
from kvstore.core.lease import Lease
from kvstore.core.lookup import Found, in_flight_beyond, longest
from kvstore.core.named_pins import NamedPins
from kvstore.core.namespace import Namespace
from kvstore.core.repeats import fingerprint_of, took
from kvstore.core.values.counters import Lookup
from kvstore.core.values.requests import Caller, Match, MatchWishes, Sequence
from kvstore.core.values.tokens import matchable_pages
from kvstore.errors import IdReused, NamespaceNotFound

_new_tuple = tuple.__new__


class Matching(NamedPins):
    """Finds cached prefixes for leases and pins them; counts what was found."""

    _uses = 0

    @property
    def use_count(self) -> int:
        """How often pages were used: a node's last use is one of these."""
        return self._uses

    def match(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes,
        now: float,
        *,
        to_verify: bool = False,
    ) -> Match:
        """Pin the longest cached prefix and return it; a miss takes no pin.

        With ``to_verify`` the answer is not to be given before its pages were looked
        at: ``Verifying.inspect`` comes next.
        """
        lease = self.member(caller)
        namespace = self._own(lease, namespace_id)
        self._require_alive(lease, wishes)
        if wishes.pin_id not in lease.pins:
            lease.require_room(wishes.hold_count)
        match = self._match(lease, namespace, sequence, wishes, now)
        if not to_verify:
            self._tell(lease, wishes.pin_id)
        return match

    def _own(self, lease: Lease, namespace_id: bytes) -> Namespace:
        namespace = self.namespaces.get(namespace_id)
        if namespace is None or namespace.tenant != lease.tenant:
            raise NamespaceNotFound(namespace_id=namespace_id.hex())
        return namespace

    def _touch(self, at: Position, hits: int = 0) -> None:
        """Make ``at``'s path the most recently used, asked for ``hits`` more times."""
        self._uses += 1
        note_use(at.node, at.pages, self._uses, hits)

    def _require_alive(self, lease: Lease, wishes: MatchWishes) -> None:
        """Raise Tombstoned if a pin that a match wants was released already."""
        tombstones = lease.pin_tombstones
        tombstones.require_none(wishes.pin_id, id=wishes.pin_id)
        if wishes.source_pin_id is not None:
            tombstones.require_none(wishes.source_pin_id, id=wishes.source_pin_id)

    def _match(
        self,
        lease: Lease,
        namespace: Namespace,
        sequence: Sequence,
        wishes: MatchWishes,
        now: float,
        yield_idle: float | None = None,
    ) -> Match:
        """Do as ``match``, once no pin that is wanted was released and there is room for them.

        With ``yield_idle`` nothing is done where more of the sequence is in flight, of a
        reservation that advanced within so many seconds.
        """
        pin_id, source_pin_id = wishes.pin_id, wishes.source_pin_id
        pin = lease.pins.get(pin_id)
        if pin is not None:
            if not isinstance(pin, Pin) or not took(pin, namespace, sequence, wishes):
                raise IdReused(id=pin_id)
            return match_of(lease, pin)
        if source_pin_id == pin_id or source_pin_id in lease.pins:
            raise IdReused(id=source_pin_id)
        asked = self.length(sequence.tokens, sequence.position)
        found = longest(
            lease,
            namespace,
            sequence,
            wants_source=source_pin_id is not None,
            wants_next_token=wishes.accept_next_token,
        )
        in_flight = None
        if namespace.prefills.by_page:
            idle = inf if yield_idle is None else yield_idle
            in_flight = in_flight_beyond(found.at, sequence, now=now, idle=idle)
        if yield_idle is not None and in_flight is not None:
            for counters in (self.counters, namespace.counters, lease.counters):
                counters.yielded_count += 1
            matched = found.at.depth * namespace.layout.page_tokens
            return Match(matched, (), in_flight=in_flight)
        node, pages = found.at
        depth = node.start + pages
        lookup = _lookup(namespace, found, depth, asked, wishes)
        if found.last.depth == 0:
            self._count_lookup(lease, namespace, lookup)
            return Match(0, (), in_flight=in_flight)
        fingerprint = fingerprint_of(namespace, sequence, wishes, depth)
        pin = self._pin(lease, namespace, found, wishes, fingerprint, now)
        pin.unanswered = Unanswered(lookup)
        return match_of(lease, pin, in_flight)

    def _pin(
        self,
        lease: Lease,
        namespace: Namespace,
        found: Found,
        wishes: MatchWishes,
        fingerprint: int,
        now: float,
    ) -> Pin:
        """Use and pin what was found, the source page by a pin of its own."""
        last = found.last
        self._touch(last, hits=1)
        if self.wanted is not None:
            self.wanted.matched(last, found.tiers)
        if self.third is not None:
            self.third.touched(found.at)
        pin = Pin(wishes.pin_id, namespace, found.at, fingerprint, now, found.tiers)
        lease.add_pin(pin)
        pin.next_token = found.next_token
        if found.source is not None:
            source_pin_id, valid = wishes.source_pin_id, found.valid_token_count
            assert source_pin_id is not None  # or no source was looked for
            pin.source_id = source_pin_id
            source = SourcePin(source_pin_id, namespace, found.source, valid, now, found.tiers)
            lease.add_pin(source)
        return pin

    def _tell(self, lease: Lease, pin_id: int) -> None:
        """Count a match that is answered now for the first time; without a pin it was a miss."""
        pin = lease.pins.get(pin_id)
        if isinstance(pin, Pin) and pin.unanswered is not None:
            self._count_lookup(lease, pin.namespace, pin.unanswered.lookup)
            pin.unanswered = None

    def _count_lookup(self, lease: Lease, namespace: Namespace, lookup: Lookup) -> None:
        for counters in (self.counters, namespace.counters, lease.counters):
            counters.count_lookup(lookup)


def _lookup(
    namespace: Namespace, found: Found, depth: int, asked: int, wishes: MatchWishes
) -> Lookup:
    """Return what is counted of a match, which found ``depth`` pages to use in place."""
    page_tokens = namespace.layout.page_tokens
    matchable = max(asked - 1, 0)
    if found.next_token is not None:
        matchable = asked
    elif wishes.source_pin_id is None or not namespace.layout.divides_by_token:
        matchable = matchable_pages(asked, page_tokens) * page_tokens
    matched, copied = depth * page_tokens, found.valid_token_count
    speed = wishes.prefill_tokens_per_second
    has_next_token = found.next_token is not None
    # Without a frame of Python's, as where a tuple is made with each match elsewhere.
    return _new_tuple(Lookup, (asked, matched, copied, matchable, has_next_token, speed))
