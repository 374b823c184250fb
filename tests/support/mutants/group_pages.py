"""The faults about KV cache groups and slots that move, which the cache machine has to find."""

from mutants.mutant import Mutant

GROUP_MUTANTS = [
    Mutant(
        "hole-is-not-stepped-over",
        "kvstore.core.verbs.group_windows",
        "_Walk.is_whole",
        "first >= depth",
        "first >= depth or marker not in children",
    ),
    Mutant(
        "window-is-off-by-one",
        "kvstore.core.verbs.group_windows",
        "_Walk._first",
        "self.end - count",
        "self.end - count + 1",
    ),
    Mutant(
        "group-start-page-is-ignored",
        "kvstore.core.verbs.group_windows",
        "_Walk._first",
        "max(self.end - count, self._start)",
        "max(self.end - count, 0)",
    ),
    Mutant(
        "group-page-is-not-pinned",
        "kvstore.core.leases.holds",
        "Pin.hold_group",
        "self.groups += (HeldGroup(group, start_page, len(pages)),)",
        "self.groups += (HeldGroup(group, start_page, len(pages)),)\n"
        "for each in self.group_anchors:\n"
        "    each.node.copies_in(each.tier).anchors.discard(each)",
    ),
    Mutant(
        "group-page-stays-pinned",
        "kvstore.core.leases.lease",
        "Lease.drop_pin",
        "release_groups(pin.group_anchors)",
        "pass",
    ),
    Mutant(
        "moved-slot-is-given-back-twice",
        "kvstore.core.leases.holds",
        "Reservation.move_out",
        "self.published[offset] = 1",
        "pass",
    ),
    Mutant(
        "duplicate-of-a-group-is-lost",
        "kvstore.core.leases.holds",
        "Reservation.unpublished",
        'array("Q", own) + self.duplicates',
        'array("Q", own)',
    ),
    Mutant(
        "cached-group-page-is-replaced",
        "kvstore.core.verbs.slot_moves",
        "GroupPublishing._publish_one",
        "there is not None or has_left(at.node)",
        "at.node.detached",
    ),
    Mutant(
        "group-page-goes-below-a-removed-path",
        "kvstore.core.verbs.slot_moves",
        "require_parents",
        "has_left(covered_position(namespace, base, last + 1).node)",
        "covered_position(namespace, base, last + 1) is None",
    ),
    Mutant(
        "path-grows-over-a-group-page",
        "kvstore.core.index.radix",
        "continuation",
        "not is_group_page(child.edge)",
        "True",
    ),
    Mutant(
        "page-that-is-gone-keeps-its-jump",
        "kvstore.core.index.radix",
        "RadixIndex._forget",
        "_drop(node.jump_up)",
        "pass",
    ),
    Mutant(
        "walk-ends-on-a-group-page",
        "kvstore.core.index.radix",
        "RadixIndex.descend",
        "node.edge.startswith(MARK)",
        "False",
    ),
    Mutant(
        "marker-is-inserted-as-tokens",
        "kvstore.core.values.group_pages",
        "require_sequence",
        "path_bytes(tokens, width) < len(tokens)",
        "False",
    ),
]
