"""Match: the longest cached prefix of a sequence, pinned and counted."""

from array import array
from math import inf

from kvstore.core.leases.holds import Pin, SourcePin, Unanswered
from kvstore.core.leases.lease import Lease
from kvstore.core.leases.state import CacheState
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.counters import Lookup, count_lookup
from kvstore.core.values.requests import Caller, InFlight, Match, MatchOptions, Sequence, Source
from kvstore.core.values.runs import runs_of
from kvstore.core.values.tokens import TOKEN_BYTES, matchable_pages
from kvstore.core.verbs.lookup import Found, in_flight_beyond, longest
from kvstore.errors import IdReused, Tombstoned


class Matching:
    """Finds cached prefixes for leases and pins them. Counts what it found."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def match(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        now: float,
        *,
        to_verify: bool = False,
    ) -> Match:
        """Pins the longest cached prefix and returns it. A miss takes no pin.

        With ``to_verify`` the caller must not give the answer to anybody before some of its
        pages were read. ``Verifying.inspect`` comes next.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        lease.require_pins_alive(options)
        if options.pin_id not in lease.pins:
            lease.require_room(options.hold_count)
        match = self.match_in(lease, namespace, sequence, options, now)
        if not to_verify:
            self.tell(lease, options.pin_id)
        return match

    def match_in(
        self,
        lease: Lease,
        namespace: Namespace,
        sequence: Sequence,
        options: MatchOptions,
        now: float,
        yield_idle: float | None = None,
    ) -> Match:
        """Does as ``match``, after the checks of the lease, its pins and their number.

        With ``yield_idle`` it does nothing if more of the sequence is in flight, under a
        reservation that advanced within so many seconds.
        """
        pin_id, source_pin_id = options.pin_id, options.source_pin_id
        pin = lease.pins.get(pin_id)
        if pin is not None:
            if not isinstance(pin, Pin) or not took(pin, namespace, sequence, options):
                raise IdReused(id=pin_id)
            return match_of(lease, pin)
        if source_pin_id == pin_id or source_pin_id in lease.pins:
            raise IdReused(id=source_pin_id)
        asked = self._state.length(sequence.tokens, sequence.position)
        found = longest(
            lease,
            namespace,
            sequence,
            wants_source=source_pin_id is not None,
            wants_next_token=options.accept_next_token,
        )
        in_flight = None
        if namespace.prefills.by_page:
            idle = inf if yield_idle is None else yield_idle
            in_flight = in_flight_beyond(namespace, found.at, sequence, now=now, idle=idle)
        if yield_idle is not None and in_flight is not None:
            for counters in (self._state.counters, namespace.counters, lease.counters):
                counters.yielded_count += 1
            matched = found.at.depth * namespace.layout.page_tokens
            return Match(matched, (), in_flight=in_flight)
        node, pages = found.at
        depth = node.start + pages
        lookup = _lookup(namespace, found, depth, asked, options)
        if not depth and found.source is None:
            count_lookup(lookup, self._state.counters, namespace.counters, lease.counters)
            return Match(0, (), in_flight=in_flight)
        fingerprint = fingerprint_of(namespace, sequence, options, depth)
        pin = self._pin(lease, namespace, found, options, fingerprint, now)
        pin.unanswered = Unanswered(lookup)
        return match_of(lease, pin, in_flight)

    def tell(self, lease: Lease, pin_id: int) -> None:
        """Counts a match whose answer is given now for the first time.

        Does nothing without a pin: ``match_in`` counted the miss.
        """
        pin = lease.pins.get(pin_id)
        if isinstance(pin, Pin) and pin.unanswered is not None:
            sinks = self._state.counters, pin.namespace.counters, lease.counters
            count_lookup(pin.unanswered.lookup, *sinks)
            pin.unanswered = None

    def _pin(
        self,
        lease: Lease,
        namespace: Namespace,
        found: Found,
        options: MatchOptions,
        fingerprint: int,
        now: float,
    ) -> Pin:
        """Uses and pins what was found; the source page gets a pin of its own."""
        state, last = self._state, found.last
        state.touch(last, hits=1)
        if state.wanted is not None:
            state.wanted.matched(last, found.tiers)
        if state.disk is not None:
            state.disk.touched(found.at)
        pin = Pin(options.pin_id, namespace, found.at, fingerprint, now, found.tiers)
        lease.add_pin(pin)
        pin.next_token = found.next_token
        if found.source is not None:
            source_pin_id, valid = options.source_pin_id, found.valid_token_count
            assert source_pin_id is not None  # without one, no source is looked for
            pin.source_id = source_pin_id
            source = SourcePin(source_pin_id, namespace, found.source, valid, now, found.tiers)
            lease.add_pin(source)
        return pin


def _lookup(
    namespace: Namespace, found: Found, depth: int, asked: int, options: MatchOptions
) -> Lookup:
    """Returns the counts of a match that found ``depth`` pages to use in place."""
    page_tokens = namespace.layout.page_tokens
    matchable = max(asked - 1, 0)
    if found.next_token is not None:
        matchable = asked
    elif options.source_pin_id is None or not namespace.layout.divides_by_token:
        matchable = matchable_pages(asked, page_tokens) * page_tokens
    matched, copied = depth * page_tokens, found.valid_token_count
    speed = options.prefill_tokens_per_second
    has_next_token = found.next_token is not None
    return Lookup(asked, matched, copied, matchable, has_next_token, speed)


def match_of(lease: Lease, pin: Pin, in_flight: InFlight | None = None) -> Match:
    """Returns a match's answer: the pinned path, its source page, and what is in flight.

    Raises Tombstoned if the source page was released, however long ago.
    """
    namespace = pin.namespace
    extents, slots = namespace.extents, pin.slots()
    source = None
    if pin.source_id is not None:
        held = lease.pins.get(pin.source_id)
        if not isinstance(held, SourcePin):
            raise Tombstoned(id=pin.source_id)
        page = runs_of(array("Q", (held.last_slot(),)), extents)[0]
        source = Source(held.hold_id, page, held.valid_token_count)
    runs = runs_of(slots, extents)
    matched = len(slots) * namespace.layout.page_tokens
    return Match(matched, runs, source, pin.next_token, 0, in_flight)


def fingerprint_of(
    namespace: Namespace, sequence: Sequence, options: MatchOptions, depth: int
) -> int:
    """Returns a hash that tells a match from others under the same pin id.

    It leaves out the tokens of the pinned path, whose ``depth`` is in pages. The path has
    these tokens as long as the pin exists, and ``took`` compares them only if an id comes
    again. A digest of 100,000 tokens takes 106 us, and the match itself 25.
    """
    rest = sequence.tokens[_matched(namespace, sequence, depth) :]
    return hash(
        (
            namespace.namespace_id,
            sequence.position,
            sequence.base_pin_id,
            sequence.base_reservation_id,
            options.pin_id,
            options.source_pin_id,
            options.accept_next_token,
            len(sequence.tokens),
            rest,
        )
    )


def took(pin: Pin, namespace: Namespace, sequence: Sequence, options: MatchOptions) -> bool:
    """Returns True if this very match took a pin. Costs as much as the pin's path is long."""
    depth = pin.held_end
    if pin.fingerprint != fingerprint_of(namespace, sequence, options, depth):
        return False
    matched = _matched(namespace, sequence, depth)
    start = sequence.position * TOKEN_BYTES
    return pin.tokens()[start : start + matched] == sequence.tokens[:matched]


def _matched(namespace: Namespace, sequence: Sequence, depth: int) -> int:
    """Returns how many leading bytes of a sequence are on the path of its pin."""
    return max(depth * namespace.layout.page_tokens - sequence.position, 0) * TOKEN_BYTES
