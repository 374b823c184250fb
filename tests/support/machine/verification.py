"""The cache machine's rules about pages that somebody wrote over."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Match, MatchOptions, Sequence
from kvstore.core.verbs.verify import Inspection, PageCheck
from machine.state import COUNTS, OWNER, PAGES, TAILS, MachineState, slots_of
from naive.copies import Slot
from naive.holds import Expected, ModelLease

# What happens between the look at the pages and the verdict.
MEANWHILE = st.sampled_from(["nothing"] * 3 + ["an operator removes", "a repeat is answered"])


def write_over(machine: MachineState, slot: Slot) -> None:
    """Changes a bit of a published page; or change it back."""
    machine.digests[slot] ^= 1 << 40
    machine.flipped ^= {slot}


@precondition(lambda machine: machine.model.cached)
@rule(data=st.data())
def write_over_a_page(machine: MachineState, data: st.DataObject) -> None:
    """Somebody writes where nobody may."""
    COUNTS["write_over_a_page"] += 1
    write_over(
        machine, machine.model.cached[data.draw(st.sampled_from(sorted(machine.model.cached)))]
    )


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), pages=PAGES, tail=TAILS, meanwhile=MEANWHILE)
def verify_a_match(
    machine: MachineState,
    data: st.DataObject,
    pages: list[int],
    tail: tuple[int, int],
    meanwhile: str,
) -> None:
    """Match and look at all pages, again and again, until none was written over."""
    COUNTS["verify_a_match"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    tokens = machine.sequence(data, pages, tail)
    if machine.model.next_tokens and data.draw(st.booleans()):
        tokens = data.draw(st.sampled_from(sorted(machine.model.next_tokens)))
    path = machine.model.longest(tokens, len(tokens) // machine.model.width)
    near = [slot for _, slot in path]
    near += [machine.model.cached[each] for each in machine.model.covering(tokens) if tokens]
    if near and data.draw(st.booleans()):
        write_over(machine, data.draw(st.sampled_from(near)))
    asked = Sequence(tokens), machine.options(data)
    while True:
        expected, match, inspection = ask(machine, lease, asked)
        if inspection is None:
            machine.check_match(lease, expected, asked, match)
            return
        answered, repeat = False, meanwhile == "a repeat is answered"
        if meanwhile == "an operator removes":
            machine.model.remove(tokens[: machine.model.width])
            machine.model.disk.forbid(tokens[: machine.model.width])
            machine.cache.evict_prefix(OWNER, machine.namespace_id, tokens[: machine.model.width])
        elif repeat:
            caller = machine.caller(lease)
            again = machine.cache.match(caller, machine.namespace_id, *asked, machine.now)
            assert again == match._replace(in_flight=None)
            machine.check_match(lease, expected, asked, match)
        meanwhile = "nothing"
        answered = judge(machine, inspection, expected, match, repeat=repeat)
        machine.core_invariants.check()
        if answered:
            if not repeat:
                machine.check_match(lease, expected, asked, match)
            return


def ask(
    machine: MachineState, lease: ModelLease, asked: tuple[Sequence, MatchOptions]
) -> tuple[Expected, Match, Inspection | None]:
    """Returns what is to be found, and a match with its inspection."""
    sequence, options = asked
    path = machine.model.longest(sequence.tokens, len(sequence.tokens) // machine.model.width)
    expected = machine.model.expect(lease, sequence, b"", options, path)
    caller = machine.caller(lease)
    match, inspection = machine.cache.match_with_checks(
        caller, machine.namespace_id, sequence, options, machine.now, range
    )
    return expected, match, inspection


def judge(
    machine: MachineState, inspection: Inspection, expected: Expected, match: Match, *, repeat: bool
) -> bool:
    """Looks at the pages and conclude; returns whether there is nothing more to ask."""
    prefixes = {slot: prefix for prefix, slot in expected.path}
    if match.source is not None:
        [slot] = slots_of([match.source.page])
        prefixes[slot] = expected.sources[slot]
    looked = {_slot_of(page): page for page in inspection.pages}
    assert set(looked) == set(prefixes), "other pages were looked at than are answered"
    bad = [page for slot, page in looked.items() if page.checksum != machine.digests[slot]]
    assert {_slot_of(page) for page in bad} == machine.flipped & set(looked), "a good page is bad"
    there = {slot for slot, prefix in prefixes.items() if machine.model.has(prefix, slot)}
    removed = machine.cache.remove_corrupt(inspection, bad, len(looked))
    assert {_slot_of(page) for page in removed} == {_slot_of(page) for page in bad} & there
    # From the top: a page goes with all that continues it, which holds keep together.
    for page in sorted(bad, key=lambda each: each.end):
        prefix = prefixes[_slot_of(page)]
        if page in removed:
            machine.model.remove(prefix)
        forget_ends_within(machine, prefix)
        if len(prefix) % machine.model.width == 0:
            # What begins as a partial page does was not computed on it while it was there.
            machine.model.disk.forbid(prefix)
        machine.model.disk.removals += 1
    COUNTS["corrupt pages"] += len(removed)
    gone = any(not machine.model.has(prefix, slot) for slot, prefix in prefixes.items())
    machine.core_invariants.check()
    try:
        settled = machine.cache.settle(inspection, bad)
    except errors.PageCorrupt:
        assert repeat
        assert bad
        return True
    finally:
        all_gone(machine)
    assert settled == (repeat or not gone)
    assert not (repeat and bad)
    return settled


def all_gone(machine: MachineState) -> None:
    """Removes all that continues corrupt pages, a part at a time."""
    while machine.cache.remove_condemned():
        COUNTS["parts of corrupt pages"] += 1
        machine.core_invariants.check()


def forget_ends_within(machine: MachineState, prefix: bytes) -> None:
    """Forgets all next tokens within a page, whoever else's page begins alike."""
    above = (len(prefix) - 1) // machine.model.width * machine.model.width
    for end in list(machine.model.next_tokens):
        if prefix.startswith(end) and len(end) > above:
            del machine.model.next_tokens[end]


def _slot_of(page: PageCheck) -> Slot:
    return page.slot >> 32, page.slot & 0xFFFFFFFF
