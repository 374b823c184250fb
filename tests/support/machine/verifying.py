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


class VerifyRules(MachineState):
    """Pages are written over, and matches find them before they are answered."""

    def write_over(self, slot: Slot) -> None:
        """Changes a bit of a published page; or change it back."""
        self.digests[slot] ^= 1 << 40
        self.flipped ^= {slot}

    @precondition(lambda self: self.model.cached)
    @rule(data=st.data())
    def write_over_a_page(self, data: st.DataObject) -> None:
        """Somebody writes where nobody may."""
        COUNTS["write_over_a_page"] += 1
        self.write_over(self.model.cached[data.draw(st.sampled_from(sorted(self.model.cached)))])

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, tail=TAILS, meanwhile=MEANWHILE)
    def verify_a_match(
        self, data: st.DataObject, pages: list[int], tail: tuple[int, int], meanwhile: str
    ) -> None:
        """Match and look at all pages, again and again, until none was written over."""
        COUNTS["verify_a_match"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = self.sequence(data, pages, tail)
        if self.model.ends and data.draw(st.booleans()):
            tokens = data.draw(st.sampled_from(sorted(self.model.ends)))
        path = self.model.longest(tokens, len(tokens) // self.model.width)
        near = [slot for _, slot in path]
        near += [self.model.cached[each] for each in self.model.covering(tokens) if tokens]
        if near and data.draw(st.booleans()):
            self.write_over(data.draw(st.sampled_from(near)))
        asked = Sequence(tokens), self.options(data)
        while True:
            expected, match, inspection = self.ask(lease, asked)
            if inspection is None:
                self.check_match(lease, expected, asked, match)
                return
            answered, repeat = False, meanwhile == "a repeat is answered"
            if meanwhile == "an operator removes":
                self.model.remove(tokens[: self.model.width])
                self.model.disk.forbid(tokens[: self.model.width])
                self.cache.evict_prefix(OWNER, self.namespace_id, tokens[: self.model.width])
            elif repeat:
                caller = self.caller(lease)
                again = self.cache.match(caller, self.namespace_id, *asked, self.now)
                assert again == match._replace(in_flight=None)
                self.check_match(lease, expected, asked, match)
            meanwhile = "nothing"
            answered = self.judge(inspection, expected, match, repeat=repeat)
            self.laws.check()
            if answered:
                if not repeat:
                    self.check_match(lease, expected, asked, match)
                return

    def ask(
        self, lease: ModelLease, asked: tuple[Sequence, MatchOptions]
    ) -> tuple[Expected, Match, Inspection | None]:
        """Returns what is to be found, and a match with its inspection."""
        sequence, options = asked
        path = self.model.longest(sequence.tokens, len(sequence.tokens) // self.model.width)
        expected = self.model.expect(lease, sequence, b"", options, path)
        caller = self.caller(lease)
        match, inspection = self.cache.match_with_checks(
            caller, self.namespace_id, sequence, options, self.now, range
        )
        return expected, match, inspection

    def judge(
        self, inspection: Inspection, expected: Expected, match: Match, *, repeat: bool
    ) -> bool:
        """Looks at the pages and conclude; returns whether there is nothing more to ask."""
        prefixes = {slot: prefix for prefix, slot in expected.path}
        if match.source is not None:
            [slot] = slots_of([match.source.page])
            prefixes[slot] = expected.sources[slot]
        looked = {_slot_of(page): page for page in inspection.pages}
        assert set(looked) == set(prefixes), "other pages were looked at than are answered"
        bad = [page for slot, page in looked.items() if page.checksum != self.digests[slot]]
        assert {_slot_of(page) for page in bad} == self.flipped & set(looked), "a good page is bad"
        there = {slot for slot, prefix in prefixes.items() if self.model.has(prefix, slot)}
        removed = self.cache.remove_corrupt(inspection, bad, len(looked))
        assert {_slot_of(page) for page in removed} == {_slot_of(page) for page in bad} & there
        for page in bad:
            prefix = prefixes[_slot_of(page)]
            if page in removed:
                self.model.remove(prefix)
            self.forget_ends_within(prefix)
            if len(prefix) % self.model.width == 0:
                # What begins as a partial page does was not computed on it while it was there.
                self.model.disk.forbid(prefix)
            self.model.disk.removals += 1
        COUNTS["corrupt pages"] += len(removed)
        gone = any(not self.model.has(prefix, slot) for slot, prefix in prefixes.items())
        try:
            settled = self.cache.settle(inspection, bad)
        except errors.PageCorrupt:
            assert repeat
            assert bad
            return True
        assert settled == (repeat or not gone)
        assert not (repeat and bad)
        return settled

    def forget_ends_within(self, prefix: bytes) -> None:
        """Forgets all next tokens within a page, whoever else's page begins alike."""
        above = (len(prefix) - 1) // self.model.width * self.model.width
        for end in list(self.model.ends):
            if prefix.startswith(end) and len(end) > above:
                del self.model.ends[end]


def _slot_of(page: PageCheck) -> Slot:
    return page.slot >> 32, page.slot & 0xFFFFFFFF
