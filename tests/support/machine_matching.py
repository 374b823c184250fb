"""The cache machine's rules about matching."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from machine_state import COUNTS, OWNER, PAGES, MachineState, slots_of
from naive_model import ModelHold, ModelLease, Path

from kvstore import errors
from kvstore.core.requests import MatchWishes, Sequence


class MatchRules(MachineState):
    """Sequences are matched and released."""

    def match_and_check(
        self, lease: ModelLease, sequence: Sequence, expected: Path, pin_id: int
    ) -> None:
        """Match, compare with the model, and match again: the same answer."""
        wishes = MatchWishes(pin_id)
        match = self.cache.match(self.caller(lease), self.namespace_id, sequence, wishes, self.now)
        assert slots_of(match.runs) == [slot for _, slot in expected], "another path was matched"
        assert match.matched_token_count == len(expected) * self.page_tokens
        if expected:
            lease.pins[pin_id] = (sequence, ModelHold(expected))
            again = self.cache.match(
                self.caller(lease), self.namespace_id, sequence, MatchWishes(pin_id), self.now
            )
            assert again == match

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, tail=st.integers(0, 2))
    def match(self, data: st.DataObject, pages: list[int], tail: int) -> None:
        """Match a sequence; peek says the same beforehand."""
        COUNTS["match"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = self.sequence(data, pages) + self.tokens([], tail)
        whole = self.model.longest(tokens, max(len(tokens) // 4 - 1, 0) // self.page_tokens)
        peeked = self.cache.peek(OWNER, self.namespace_id, tokens)
        assert peeked.page_count == len(whole)
        assert peeked.matched_token_count == len(whole) * self.page_tokens
        expected = self.expected_match(lease, tokens)
        self.match_and_check(lease, Sequence(tokens), expected, self.fresh())

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data(), pages=PAGES)
    def match_from_a_pin(self, data: st.DataObject, pages: list[int]) -> None:
        """Match the continuation of a pinned path, sending only what comes after it."""
        COUNTS["match_from_a_pin"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        if lease.expired or not lease.processes:
            return
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        path = lease.pins[pin_id][1].path
        depth = data.draw(st.integers(0, len(path)))
        tokens = self.tokens(pages, 1)
        whole = (path[depth - 1][0] if depth else b"") + tokens
        attached = self.model.attached(path)
        if len(attached) < depth:
            expected = self.expected_match(lease, whole, attached)
        else:
            expected = self.expected_match(lease, whole)
        sequence = Sequence(tokens, depth * self.page_tokens, base_pin_id=pin_id)
        self.match_and_check(lease, sequence, expected, self.fresh())

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data())
    def repeat_a_match(self, data: st.DataObject) -> None:
        """A repeated match answers its pin; other arguments under its id are refused."""
        COUNTS["repeat_a_match"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        if lease.expired or not lease.processes:
            return
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        sequence, hold = lease.pins[pin_id]
        caller = self.caller(lease)
        wishes = MatchWishes(pin_id)
        again = self.cache.match(caller, self.namespace_id, sequence, wishes, self.now)
        assert slots_of(again.runs) == [slot for _, slot in hold.path]
        other = Sequence(self.tokens([3, 3, 3, 3, 3, 3]))
        self.refused(errors.IdReused, self.cache.match, lease, self.namespace_id, other, wishes)

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, *, twice: bool) -> None:
        """Release a pin, once or twice; a match that arrives afterwards fails whole."""
        COUNTS["release"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        sequence, _ = lease.pins.pop(pin_id)
        lease.dead_pins.add(pin_id)
        self.cache.release(self.caller(lease), [pin_id] * (2 if twice else 1), self.now)
        if lease.processes and not lease.expired:
            self.refused(
                errors.Tombstoned,
                self.cache.match,
                lease,
                self.namespace_id,
                sequence,
                MatchWishes(pin_id),
            )
