"""The faults that the cache machine has to find in the core."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault: in ``file``, ``old`` (which stands there once) becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("unchanged", "index/radix.py", "RadixIndex", "RadixIndex"),
    Mutant(
        "missing-reference-on-match",
        "leases/holds.py",
        "        if at.pages:\n            self.stand_at(at)\n",
        "",
    ),
    Mutant(
        "eviction-ignores-pins",
        "eviction/order.py",
        "tail.end - max(tail.start, leaf.held_pages)",
        "tail.end - tail.start",
    ),
    Mutant(
        "slot-recycled-early",
        "leases/holds.py",
        "if not published])",
        "])",
    ),
    Mutant(
        "rounding-up",
        "values/tokens.py",
        "max(count - 1, 0) // page_tokens",
        "-(-max(count - 1, 0) // page_tokens)",
    ),
    Mutant(
        "matches-the-last-token",
        "values/tokens.py",
        "max(count - 1, 0) // page_tokens",
        "count // page_tokens",
    ),
    Mutant(
        "children-shared-after-a-split",
        "index/radix.py",
        "        upper.add_child(node.edge[: self.width], node)\n",
        "        for key, child in node.children.items():\n"
        "            upper.add_child(key, child)\n"
        "        upper.add_child(node.edge[: self.width], node)\n",
    ),
    Mutant("stale-parent-after-a-split", "index/radix.py", "        node.parent = upper\n", ""),
    Mutant(
        "pins-stay-below-a-split",
        "index/node.py",
        "anchor.move(upper, anchor.pages)",
        "anchor.pages -= 0",
    ),
    Mutant(
        "page-lists-sliced-by-token-count",
        "verbs/insert.py",
        "reservation.slots()[first:end]",
        "reservation.slots()[sequence.position : length]",
    ),
    Mutant(
        "empty-slot-list-on-a-cached-start",
        "index/radix.py",
        "        slots.extend(part)\n",
        "        slots.extend(part[:0])\n",
    ),
    Mutant(
        "duplicates-dropped-on-insert",
        "verbs/insert.py",
        "[False] * duplicates",
        "[True] * duplicates",
    ),
    Mutant(
        "pin-tombstone-forgotten",
        "verbs/release.py",
        "            lease.pin_tombstones.leave(pin_id, now)\n",
        "",
    ),
    Mutant(
        "reservation-tombstone-forgotten",
        "verbs/release.py",
        "            lease.reservation_tombstones.leave(reservation_id, now)\n",
        "",
    ),
    Mutant(
        "published-slot-granted-and-written-again",
        "values/slots.py",
        "        del self.available[split:]\n",
        "",
    ),
    Mutant(
        "reservations-of-an-ended-lease-kept",
        "leases/lifecycle.py",
        "            lease.drop_reservation(reservation)\n        self._state.ended",
        "            pass\n        self._state.ended",
    ),
    Mutant(
        "pins-of-an-ended-lease-kept",
        "leases/lifecycle.py",
        "            lease.drop_pin(pin)\n        for",
        "            pass\n        for",
    ),
    Mutant(
        "living-holder-past-its-ttl-loses-its-slots",
        "leases/lifecycle.py",
        "        lease.expired_at = now\n",
        "        return [self.end(lease, now)]\n",
    ),
    Mutant(
        "insert-under-a-detached-path",
        "verbs/insert.py",
        "    if parent.node.detached:\n",
        "    if False:\n",
    ),
    Mutant(
        "what-is-above-a-removed-page-loses-its-pin",
        "leases/holds.py",
        "        if above.depth:\n            self.stand_at(above)\n",
        "",
    ),
    Mutant(
        "named-pin-holds-no-page",
        "leases/named_pins.py",
        "        self.stand_at(at)\n",
        "        self.stand_at(at)\n        self.anchors[0].leave()\n",
    ),
    Mutant(
        "named-pin-survives-a-removal",
        "pool/pages.py",
        "        if hold.pages_leave():\n",
        "        if False:\n",
    ),
    Mutant(
        "unpinned-prefix-stays-held",
        "leases/named_pins.py",
        "    release(pin.anchors)\n",
        "",
    ),
    Mutant(
        "named-pin-answers-for-another-prefix",
        "verbs/named_pins.py",
        "pin is not None and pin.fingerprint != fingerprint",
        "False",
    ),
    Mutant(
        "named-pin-of-one-page-too-few",
        "verbs/named_pins.py",
        "at = namespace.index.descend(at, request.tokens, pages)",
        "at = namespace.index.descend(at, request.tokens, max(pages - 1, 0))",
    ),
    Mutant(
        "repeated-pin-keeps-its-first-end",
        "verbs/named_pins.py",
        "        pin.due = inf",
        "        if pin.due == inf: pin.due = inf",
    ),
    Mutant(
        "part-pinned-where-all-is-required",
        "verbs/named_pins.py",
        "request.require_all and held < pages",
        "False",
    ),
    Mutant(
        "failed-reserve-evicts",
        "eviction/order.py",
        "        if self._missing <= 0:\n",
        "        if True:\n",
    ),
    Mutant(
        "slots-of-unmapped-extents-handed-out",
        "verbs/lookup.py",
        "    if [first, lower][: len(lasting)] == lasting:\n",
        "    if lasting:\n",
    ),
    Mutant(
        "partial-page-appended-to-in-place",
        "verbs/insert.py",
        "            if reservation.tail_token_count:\n",
        "            if False:\n",
    ),
    Mutant(
        "partial-page-taken-for-a-whole-one",
        "index/radix.py",
        " and len(tokens) >= self.width:\n",
        ":\n",
    ),
    Mutant(
        "partial-page-beside-a-fuller-one",
        "pool/pages.py",
        "    remove(partial, Cause.SUPERSEDED)\n",
        "",
    ),
    Mutant(
        "source-unpinned",
        "leases/holds.py",
        "        self.stand_at(at)\n\n    @property",
        "        self.stand_at(at)\n        self.anchors[0].leave()\n\n    @property",
    ),
    Mutant(
        "source-covers-the-last-token",
        "verbs/lookup.py",
        "rest_of(namespace, depth, sequence, length - 1)",
        "rest_of(namespace, depth, sequence, length)",
    ),
    Mutant(
        "source-sought-on-one-side",
        "index/children.py",
        "        for key in self._order.around(tokens):\n",
        "        for key in self._order.around(tokens)[1:]:\n",
    ),
    Mutant(
        "path-continued-from-a-source",
        "leases/holds.py",
        '        """Zero: the path is another sequence\'s."""\n        return 0\n',
        '        """Zero: the path is another sequence\'s."""\n        return self.held_end\n',
    ),
    Mutant(
        "next-token-replaced",
        "index/next_tokens.py",
        ".setdefault(tail, token)",
        "[tail] = token",
    ),
    Mutant(
        "next-token-outlives-its-page",
        "index/radix.py",
        "        parent.ends.forget(node.start, page, parent.children.has_begun_by)\n",
        "        pass\n",
    ),
    Mutant(
        "next-token-lost-with-a-superseded-page",
        "pool/pages.py",
        "    node.ends = ends\n",
        "",
    ),
    Mutant(
        "next-token-of-a-removed-page",
        "verbs/insert.py",
        "    if length and not last.node.detached:\n",
        "    beyond = sequence.tokens[len(sequence.tokens) - rest :]\n"
        "    there = not rest or namespace.index.beginning_with(at, beyond)\n"
        "    if length and not at.node.detached and there:\n",
    ),
    Mutant(
        "next-token-of-another-end",
        "verbs/lookup.py",
        "    next_token = at.find_next_token(tail)\n",
        "    next_token = at.find_next_token(tail[:-TOKEN_BYTES])\n",
    ),
    Mutant(
        "generation-not-counted",
        "values/slots.py",
        "        generations[index] += 1\n",
        "        generations[index] = 0\n",
    ),
    Mutant(
        "retiring-extent-hands-out-slots",
        "pool/arena.py",
        "        return self.extents.keys() - self.retiring\n",
        "        return set(self.extents)\n",
    ),
    Mutant(
        "page-published-into-a-retiring-extent-stays",
        "verbs/insert.py",
        "        if namespace.arena.retiring:\n",
        "        if False:\n",
    ),
    Mutant(
        "extent-destroyed-while-a-process-that-was-given-it-lives",
        "verbs/reclaim.py",
        "                if self._state.mappings.pids(extent_id):\n",
        "                if False:\n",
    ),
    Mutant(
        "extent-destroyed-while-a-slot-of-it-is-in-use",
        "values/slots.py",
        "        return len(self.available) == self.slot_count\n",
        "        return True\n",
    ),
    Mutant(
        "quota-of-pins-ignored",
        "leases/lease.py",
        "        if self.owner.hold_count + count > maximum:\n",
        "        if False:\n",
    ),
    Mutant(
        "a-lease-of-another-tenant-is-found",
        "leases/table.py",
        "        return self.leases.get((caller.identity.tenant, caller.lease_id))\n",
        "        same = [each for key, each in self.leases.items() if key[1] == caller.lease_id]\n"
        "        return same[0] if same else None\n",
    ),
]
