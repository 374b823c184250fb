"""The faults about the journal, which a recovery from some write has to find."""

from mutants.mutant import Mutant

JOURNAL_MUTANTS = [
    Mutant(
        "record-follows-the-answer",
        "kvstore.core.journal.journal",
        "Journal.insert",
        "self.memory.append(*parts)",
        "late, self.late = getattr(self, 'late', ()), tuple(map(bytes, parts))\n"
        "if late: self.memory.append(*late)",
    ),
    Mutant(
        "generation-moves-after-the-slot-is-reserved-anew",
        "kvstore.core.values.slots",
        "recycle",
        "generations[index] += 1",
        "for late in recycle.__dict__.pop('late', ()): late[0][late[1]] += 1\n"
        "recycle.late = [(generations, index)]",
    ),
    Mutant(
        "pin-has-no-row",
        "kvstore.core.verbs.match",
        "Matching._pin",
        "state.journal.hold(pin_row(lease, pin))",
        "pass",
    ),
    Mutant(
        "source-pin-has-no-row",
        "kvstore.core.verbs.match",
        "Matching._pin",
        "state.journal.hold(source_row(lease, source))",
        "pass",
    ),
    Mutant(
        "reservation-has-no-record",
        "kvstore.core.verbs.reserve",
        "Reserving._grow",
        "write_reservation(journal, lease, reservation, generations_in(runs))",
        "pass",
    ),
    Mutant(
        "released-pin-keeps-its-row",
        "kvstore.core.verbs.release",
        "Releasing.release",
        "journal.release(lease.number, pin_id)",
        "pass",
    ),
    Mutant(
        "removal-has-no-record",
        "kvstore.core.pool.pages",
        "_write_removal",
        "namespace.journal.detach(namespace.number, page_id, slots, generations)",
        "pass",
    ),
    Mutant(
        "removal-is-recorded-after-the-pages-left",
        "kvstore.core.journal.journal",
        "Journal.detach",
        "self.memory.append(encode(record))",
        "late = self.__dict__.get('late')\n"
        "self.late = encode(record)\n"
        "if late: self.memory.append(late)",
    ),
    Mutant(
        "end-of-a-reservation-is-not-written",
        "kvstore.core.verbs.release",
        "Releasing.abort",
        "journal.abort(lease.number, reservation_id, place)",
        "pass",
    ),
    Mutant(
        "end-of-a-reservation-comes-after-its-slots-are-free",
        "kvstore.core.journal.journal",
        "Journal.abort",
        "memory.end_reservation(lease, reservation_id, place)",
        "(self.__dict__.pop('late_abort', lambda: None)(), self.__dict__.update(\n"
        "late_abort=lambda: memory.end_reservation(lease, reservation_id, place)))",
    ),
    Mutant(
        "recovery-forgets-that-a-reservation-ended",
        "kvstore.core.recovery.written",
        "Sorted._add_abort",
        "self._aborted_at[key] = max(self._aborted_at.get(key, 0), record.number)",
        "pass",
    ),
    Mutant(
        "removal-takes-what-came-later",
        "kvstore.core.journal.journal",
        "Journal.detach",
        "self.next_id",
        "1 << 60",
    ),
    # Ids say what came first. Parents named by digests would not: a removed page would be there,
    # and what is below it, in place of the one that was computed anew.
    Mutant(
        "pages-are-replayed-without-the-order-of-ids",
        "kvstore.core.recovery.tree",
        "TreeRecovery.build",
        "steps.sort(key=itemgetter(0, 1))",
        "steps.sort(key=itemgetter(1, 0))",
    ),
    Mutant(
        "end-of-a-lease-is-not-written",
        "kvstore.core.verbs.lease_lifecycle",
        "Lifecycle._write_end",
        "journal.clear(Table.LEASES, lease.number)",
        "pass",
    ),
    Mutant(
        "reservation-with-moved-slots-is-not-written",
        "kvstore.core.verbs.insert",
        "write_rest",
        "write_reservation(journal, lease, reservation)",
        "pass",
    ),
    Mutant(
        "earlier-reservation-keeps-a-moved-slot",
        "kvstore.core.recovery.recover",
        "Recovery.mark_reservations",
        "-each.number",
        "each.number",
    ),
    Mutant(
        "copy-has-no-record",
        "kvstore.core.tiers.moves",
        "_publish",
        "_write(namespace, part, tier, checksums)",
        "pass",
    ),
    Mutant(
        "ids-stay-above-a-split",
        "kvstore.core.index.page_ids",
        "PageIds.divide",
        "start < pages",
        "start < 0",
    ),
    Mutant(
        "quarantined-slot-is-handed-out",
        "kvstore.core.recovery.recover",
        "free_the_rest",
        "states[n] == FREE",
        "states[n] != CACHED",
    ),
    Mutant(
        "unknown-slot-keeps-its-generation",
        "kvstore.core.recovery.recover",
        "free_the_rest",
        "generations[index] += 1",
        "pass",
    ),
    Mutant(
        "ids-come-twice",
        "kvstore.core.journal.journal",
        "Journal.insert",
        "self.next_id = base_id + count",
        "self.next_id = base_id + count // 2",
    ),
    Mutant(
        "pages-of-a-moved-generation-are-there",
        "kvstore.core.recovery.pages",
        "LiveCopies.has",
        "table[slot & INDEX_MASK] == generation",
        "table[slot & INDEX_MASK] >= generation",
    ),
    Mutant(
        "recovery-takes-the-first-record-of-a-reservation",
        "kvstore.core.recovery.written",
        "Sorted._add_reservation",
        "known[0] < number",
        "False",
    ),
    Mutant(
        "insert-of-a-reservation-is-forgotten",
        "kvstore.core.recovery.holds",
        "caught_up",
        "each.inserted > inserted",
        "False",
    ),
]

# Faults of a recovery that begins beside the store before.
AHEAD_MUTANTS = [
    Mutant(
        "head-start-keeps-evicted-pages",
        "kvstore.core.recovery.head_start",
        "_Tree.prune",
        "gone = set(page_ids)",
        "gone = set()",
    ),
    Mutant(
        "head-start-holds-no-path-above-a-removed-page",
        "kvstore.core.recovery.head_start",
        "_Guards.places",
        "(*pin.anchors, *pin.group_anchors)",
        "(*pin.anchors[:1], *pin.group_anchors)",
    ),
    Mutant(
        "head-start-moves-no-generation",
        "kvstore.core.recovery.head_start",
        "HeadStart.complete",
        "extent.generations[index] = changed[index]",
        "pass",
    ),
]

# Those that only pages of groups, or two tiers, can show.
OF_GROUPS = (
    "reservation-with-moved-slots-is-not-written",
    "earlier-reservation-keeps-a-moved-slot",
)
OF_TIERS = ("copy-has-no-record",)
