"""The cache machine's rules about matching."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Match, MatchOptions, Sequence
from machine.state import COUNTS, OWNER, PAGES, TAILS, MachineState
from naive.copies import Path
from naive.holds import ModelLease


class MatchRules(MachineState):
    """Sequences are matched and released."""

    def match_and_check(
        self,
        lease: ModelLease,
        sequence: Sequence,
        options: MatchOptions,
        path: Path,
        above: bytes = b"",
    ) -> Match:
        """Match, compare with the model, and match again: the same answer, which is returned."""
        expected = self.model.expect(lease, sequence, above, options, path)
        caller = self.caller(lease)
        match = self.cache.match(caller, self.namespace_id, sequence, options, self.now)
        self.check_match(lease, expected, (sequence, options), match)
        COUNTS["source pages"] += match.source is not None
        COUNTS["next tokens"] += match.next_token is not None
        if options.pin_id in lease.pins:
            again = self.cache.match(caller, self.namespace_id, sequence, options, self.now)
            assert again == match._replace(in_flight=None)
        return match

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, tail=TAILS)
    def match(self, data: st.DataObject, pages: list[int], tail: tuple[int, int]) -> None:
        """Matches a sequence; peek says the same beforehand."""
        COUNTS["match"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = self.sequence(data, pages, tail)
        if self.model.ends and data.draw(st.booleans()):
            tokens = data.draw(st.sampled_from(sorted(self.model.ends)))
        path = self.model.longest(tokens, len(tokens) // self.model.width)
        whole = path[: max(len(tokens) // 4 - 1, 0) // self.page_tokens]
        peeked = self.cache.peek(OWNER, self.namespace_id, tokens, self.now)
        assert peeked.page_count == len(whole)
        assert peeked.matched_token_count == len(whole) * self.page_tokens
        self.check_in_flight(Sequence(tokens), whole, peeked.in_flight)
        start = len(whole) * self.model.width
        rest = tokens[start : min(start + self.model.width, len(tokens) - 4)] if tokens else b""
        assert peeked.source_token_count == self.model.nearest(tokens[:start], rest)[0]
        self.match_and_check(lease, Sequence(tokens), self.options(data), path)

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data(), pages=PAGES, tail=TAILS)
    def match_from_a_pin(
        self, data: st.DataObject, pages: list[int], tail: tuple[int, int]
    ) -> None:
        """Matches the continuation of a pinned path, sending only what comes after it."""
        COUNTS["match_from_a_pin"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        if lease.expired or not lease.processes:
            return
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        path = lease.pins[pin_id].path
        depth = data.draw(st.integers(0, len(path)))
        tokens = self.tokens(pages, tail)
        above = path[depth - 1][0] if depth else b""
        found = self.model.attached(path)
        if len(found) >= depth:
            found = self.model.longest(above + tokens, depth + len(tokens) // self.model.width)
        sequence = Sequence(tokens, depth * self.page_tokens, base_pin_id=pin_id)
        self.match_and_check(lease, sequence, self.options(data), found, above)

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data())
    def repeat_a_match(self, data: st.DataObject) -> None:
        """A repeated match answers its pin; other arguments under its id are refused."""
        COUNTS["repeat_a_match"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        if lease.expired or not lease.processes:
            return
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        pin = lease.pins[pin_id]
        asked = (self.namespace_id, pin.sequence, pin.options)
        if pin.match.source is not None and pin.match.source.pin_id not in lease.sources:
            self.refused(errors.Tombstoned, self.cache.match, lease, *asked)
            return
        assert self.cache.match(self.caller(lease), *asked, self.now) == pin.match
        # Meanwhile its engine may have found out that it is faster.
        asked = (*asked[:2], pin.options._replace(prefill_tokens_per_second=7))
        assert self.cache.match(self.caller(lease), *asked, self.now) == pin.match
        other = Sequence(self.tokens([4] * 6))
        options = MatchOptions(pin_id)
        self.refused(errors.IdReused, self.cache.match, lease, self.namespace_id, other, options)
        if pin.sequence.tokens:
            # Of as many tokens, and all but the first the same.
            first = bytes(255 - byte for byte in pin.sequence.tokens[:4])
            other = pin.sequence._replace(tokens=first + pin.sequence.tokens[4:])
            asked = (self.namespace_id, other, pin.options)
            self.refused(errors.IdReused, self.cache.match, lease, *asked)
        for source_id in list(lease.sources)[:1]:
            reused = MatchOptions(self.fresh(), source_id)
            self.refused(errors.IdReused, self.cache.match, lease, self.namespace_id, other, reused)
            below = Sequence(b"", self.page_tokens, base_pin_id=source_id)
            new = MatchOptions(self.fresh())
            self.refused(
                errors.ParentNotCovered, self.cache.match, lease, self.namespace_id, below, new
            )

    @precondition(lambda self: any(each.pins for each in self.model.leases.values()))
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, *, twice: bool) -> None:
        """Releases a pin, once or twice; a match that arrives afterwards fails whole."""
        COUNTS["release"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.pins]))
        pin_id = data.draw(st.sampled_from(sorted(lease.pins)))
        pin = lease.pins.pop(pin_id)
        lease.dead_pins.add(pin_id)
        self.cache.release(self.caller(lease), [pin_id] * (2 if twice else 1), self.now)
        if lease.processes and not lease.expired:
            asked = (self.namespace_id, pin.sequence, pin.options)
            self.refused(errors.Tombstoned, self.cache.match, lease, *asked)

    @precondition(lambda self: any(each.sources for each in self.model.leases.values()))
    @rule(data=st.data())
    def release_a_source(self, data: st.DataObject) -> None:
        """Releases a source page, as soon as it was copied."""
        COUNTS["release_a_source"] += 1
        lease = data.draw(st.sampled_from([e for e in self.model.leases.values() if e.sources]))
        source_id = data.draw(st.sampled_from(sorted(lease.sources)))
        del lease.sources[source_id]
        self.cache.release(self.caller(lease), [source_id], self.now)
