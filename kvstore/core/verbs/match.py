"""Match: the longest cached prefix of a sequence, pinned and counted."""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from math import inf
from typing import TypeAlias

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Position
from kvstore.core.leases.holds import Pin, SourcePin, Unanswered
from kvstore.core.leases.journaling import pin_row, source_row
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.counters import Counters, Lookup, count_lookup
from kvstore.core.values.requests import (
    Caller,
    GroupPages,
    InFlight,
    Match,
    MatchOptions,
    Sequence,
    Source,
)
from kvstore.core.values.runs import runs_of
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.group_windows import FoundGroup, require_windows
from kvstore.core.verbs.lookup import Found, find, in_flight_beyond
from kvstore.core.verbs.verify import Inspection, inspection_of
from kvstore.errors import IdReused, Tombstoned

# Picks some numbers below a page count, in rising order.
Pick: TypeAlias = Callable[[int], Items[int]]


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
    ) -> Match:
        """Pins the longest cached prefix and returns it. A miss takes no pin."""
        return self.match_with_checks(caller, namespace_id, sequence, options, now)[0]

    def match_with_checks(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        now: float,
        pick: Pick | None = None,
    ) -> tuple[Match, Inspection | None]:
        """Does as ``match``. Returns an inspection too if pages are to be read before the answer.

        ``pick`` chooses among the pages in place, followed by the source page. Chosen pages
        without a checksum are left out. A match that was answered before is not inspected again.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        lease.require_pins_alive(options)
        if options.pin_id not in lease.pins:
            lease.require_room(1 + (options.source_pin_id is not None))
        return self.match_in(lease, namespace, sequence, options, now, pick)

    def match_in(
        self,
        lease: Lease,
        namespace: Namespace,
        sequence: Sequence,
        options: MatchOptions,
        now: float,
        pick: Pick | None = None,
        yield_idle: float | None = None,
    ) -> tuple[Match, Inspection | None]:
        """Does as ``match_with_checks``, after the checks of the lease, its pins and their number.

        With ``yield_idle`` it does nothing if more of the sequence is in flight, under a
        reservation that advanced within so many seconds.
        """
        pin_id, source_pin_id = options.pin_id, options.source_pin_id
        pin = lease.pins.get(pin_id)
        if pin is not None:
            if not isinstance(pin, Pin) or not took(lease, pin, namespace, sequence, options):
                raise IdReused(id=pin_id)
            return match_of(lease, pin), self._inspect_again(lease, pin, options, pick)
        if source_pin_id == pin_id or source_pin_id in lease.pins:
            raise IdReused(id=source_pin_id)
        asked = self._state.length(sequence.tokens, sequence.position)
        if options.groups:
            require_windows(namespace, options.groups)
        found = find(lease, namespace, sequence, options)
        in_flight = None
        if namespace.prefills.by_page:
            idle = inf if yield_idle is None else yield_idle
            in_flight = in_flight_beyond(namespace, found.at, sequence, now=now, idle=idle)
        if yield_idle is not None and in_flight is not None:
            for counters in (self._state.counters, namespace.counters, lease.counters):
                counters.yielded_count += 1
            matched = found.at.depth * namespace.layout.page_tokens
            return Match(matched, (), in_flight=in_flight), None
        node, pages = found.at
        depth = node.start + pages
        lookup = _lookup(namespace, found, depth, asked, options)
        pick = None if options.is_base else pick
        every = self._state.counters, namespace.counters, lease.counters
        sinks: tuple[Counters, ...] = () if options.is_base else every
        if not depth and found.source is None:
            count_lookup(lookup, *sinks)
            return Match(0, (), in_flight=in_flight), None
        fingerprint = fingerprint_of(namespace, sequence, options, depth)
        pin = self._pin(lease, namespace, found, options, fingerprint, now)
        inspection = None if pick is None else _inspection(lease, pin, depth, options, pick)
        if inspection is None:
            count_lookup(lookup, *sinks)
        else:
            pin.unanswered = Unanswered(lookup)
        return match_of(lease, pin, in_flight), inspection

    def _inspect_again(
        self, lease: Lease, pin: Pin, options: MatchOptions, pick: Pick | None
    ) -> Inspection | None:
        """Returns the inspection of a repeated match, or None if it may be answered."""
        if pin.unanswered is None:
            return None
        inspection = _inspection(lease, pin, pin.held_end, options, pick)
        if inspection is None:
            self._state.count_answer(lease, pin)
        return inspection

    def _pin(
        self,
        lease: Lease,
        namespace: Namespace,
        found: Found,
        options: MatchOptions,
        fingerprint: int,
        now: float,
    ) -> Pin:
        """Uses and pins what was found; the source page gets a pin of its own.

        Raises QuotaExceeded, and changes nothing then.
        """
        state = self._state
        if found.groups:
            lease.owner.require_group_room(sum(len(each.pages) for each in found.groups))
        last = found.at if found.source is None else found.source
        hits = 0 if options.is_base else 1
        state.touch(last, hits=hits)
        if state.wanted is not None and hits:
            state.wanted.matched(last, found.tiers)
        if state.disk is not None:
            state.disk.touched(found.at)
        pin = Pin(options.pin_id, namespace, found.at, fingerprint, now, found.tiers)
        for each in found.groups:
            self._pin_group(pin, each, hits)
        lease.add_pin(pin)
        pin.next_token = found.next_token
        if found.source is not None:
            source_pin_id, valid = options.source_pin_id, found.valid_token_count
            assert source_pin_id is not None  # without one, no source is looked for
            pin.source_id = source_pin_id
            source = SourcePin(source_pin_id, namespace, found.source, valid, now, found.tiers)
            lease.add_pin(source)
            if state.journal is not None:
                state.journal.hold(source_row(lease, source))
        if state.journal is not None:
            state.journal.hold(pin_row(lease, pin))
        return pin

    def _pin_group(self, pin: Pin, found: FoundGroup, hits: int) -> None:
        """Uses and pins the pages of a group, with ``hits`` more hits."""
        state = self._state
        group, start_page, pages = found
        pin.hold_group(group, start_page, pages)
        state.use_count += 1
        for node, _ in pages:
            node.last_use = state.use_count
            node.hits += hits
        if state.wanted is None and state.disk is None:
            return
        for depth, (node, tier) in enumerate(pages, start=start_page + 1):
            end = Position(node, 1)
            if state.wanted is not None and hits:
                state.wanted.matched(end, ((depth + 1, tier),))
            if state.disk is not None:
                state.disk.touched(end, depth)


def _inspection(
    lease: Lease, pin: Pin, depth: int, options: MatchOptions, pick: Pick | None
) -> Inspection | None:
    """Returns the inspection of the pages that ``pick`` chooses, or None without any to read.

    ``depth`` is the number of pages of its path.
    """
    count = depth + (pin.source_id in lease.pins) + len(pin.group_anchors)
    chosen = pick(count) if pick is not None else ()
    return inspection_of(lease, pin, options, chosen) if chosen else None


def _lookup(
    namespace: Namespace, found: Found, depth: int, asked: int, options: MatchOptions
) -> Lookup:
    """Returns the counts of a match that found ``depth`` pages to use in place."""
    page_tokens = namespace.layout.page_tokens
    matchable = max(asked - 1, 0)
    if found.next_token is not None:
        matchable = asked
    elif options.source_pin_id is None or not namespace.layout.divides_by_token:
        matchable -= matchable % page_tokens
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
    groups = tuple(
        GroupPages(held.group, held.start_page, runs_of(own, extents))
        for held, own in pin.group_slots()
    )
    return Match(matched, runs, source, pin.next_token, 0, in_flight, groups)


def fingerprint_of(
    namespace: Namespace, sequence: Sequence, options: MatchOptions, depth: int
) -> int:
    """Returns a hash that tells a match from others under the same pin id.

    It leaves out the tokens of the pinned path, whose ``depth`` is in pages. The path has
    these tokens as long as the pin exists, and ``took`` compares them only if an id comes
    again. A digest of 100,000 tokens takes 106 us, and the match itself 25.
    """
    matched = max(depth * namespace.layout.page_tokens - sequence.position, 0)
    rest = sequence.tokens[matched * TOKEN_BYTES :]
    return hash(
        (
            namespace.namespace_id,
            sequence.position,
            sequence.base_pin_id,
            sequence.base_reservation_id,
            options.pin_id,
            options.source_pin_id,
            options.accept_next_token,
            options.groups,
            options.group_start_page,
            len(sequence.tokens),
            rest,
        )
    )


def took(
    lease: Lease, pin: Pin, namespace: Namespace, sequence: Sequence, options: MatchOptions
) -> bool:
    """Returns True if this very match took a pin. Costs as much as the pin's path is long.

    A pin from before a recovery has no fingerprint. Its answer then has to be right for the
    sequence and the options, whether this match took it or not.
    """
    if pin.fingerprint is None:
        return pin.namespace is namespace and _suits(lease, pin, sequence, options)
    if pin.fingerprint != fingerprint_of(namespace, sequence, options, pin.held_end):
        return False
    return sequence.tokens.startswith(pin.tokens()[sequence.position * TOKEN_BYTES :])


def _suits(lease: Lease, pin: Pin, sequence: Sequence, options: MatchOptions) -> bool:
    """Returns True if a pin's answer is one that a match of this sequence can get.

    All tokens of the answer's pages have to be the sequence's. It has a next token exactly if
    these are all of the sequence. Raises the errors of ``Lease.base_of``.
    """
    tokens, source = pin.tokens(), None
    if pin.source_id is not None:
        if options.source_pin_id != pin.source_id:
            return False
        source = lease.pins.get(pin.source_id)
    if isinstance(source, SourcePin):
        valid = source.valid_token_count * TOKEN_BYTES
        tokens = source.tokens()[: len(tokens) + valid]
    begin = sequence.position * TOKEN_BYTES
    if begin:
        base = lease.base_of(pin.namespace, sequence)
        if base is None or not base.tokens().startswith(tokens[:begin]):
            return False
    if not sequence.tokens.startswith(tokens[begin:]):
        return False
    is_all = begin + len(sequence.tokens) == len(tokens)
    if is_all != (pin.next_token is not None) or (is_all and not options.accept_next_token):
        return False
    end, start = pin.held_end, options.group_start_page
    asked = [
        (each.group, min(max(end - (each.page_count or end), start), end))
        for each in options.groups
    ]
    return asked == [(each.group, each.start_page) for each in pin.groups]
