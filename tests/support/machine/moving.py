"""The cache machine's rules about moves between tiers: begun, finished late, or given up."""

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvstore.core.index.radix import subtree
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.requests import MatchOptions, Sequence
from machine.matching import MatchRules
from machine.state import COUNTS, SELDOM
from naive.copies import FIRST, LOWER, ModelMove, Slot

POLICIES = st.builds(
    TierPolicy,
    write=st.sampled_from(WritePolicy),
    in_place=st.sampled_from([True, True, False]),
    promote=st.booleans(),
    low=st.sampled_from([0.4, 1.0]),
    high=st.just(1.0),
)


def pair(slot: int) -> Slot:
    """Returns a slot as the model names it."""
    return slot >> 32, slot & 0xFFFFFFFF


class MoveRules(MatchRules):
    """Copies come and go between two tiers, while everything else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[Move] = []

    @property
    def has_tiers(self) -> bool:
        """Whether there are two."""
        return len(self.cache.state.tiers) > 1

    @precondition(lambda self: self.has_tiers)
    @rule(most=st.integers(1, 6), late=st.booleans(), idle=st.booleans())
    def plan_moves(self, most: int, *, late: bool, idle: bool) -> None:
        """The mover looks what there is to do; copies at once, or while other things happen.

        Perhaps after all engines gave back what they held.
        """
        COUNTS["plan_moves"] += 1
        if idle:
            self.let_go()
        # The second time what was copied is dropped.
        for _ in range(2):
            moves = self.plan_once(most)
            if not late:
                self.finish(moves)

    def let_go(self) -> None:
        """Have all engines give back what they hold."""
        for lease in self.model.leases.values():
            self.cache.release(self.caller(lease), [*lease.pins, *lease.sources], self.now)
            self.cache.abort(self.caller(lease), [*lease.reservations], self.now)
            lease.dead_pins.update(lease.pins)
            lease.dead_reservations.update(lease.reservations)
            for held in (lease.pins, lease.sources, lease.reservations):
                held.clear()

    def sink(self) -> None:
        """Have all pages that nobody holds copied down, whatever the policy, and room made."""
        self.finish_all(copied=True)
        wanted = self.cache.state.wanted
        assert wanted is not None  # there are two tiers
        index = self.cache.namespaces[self.namespace_id].index
        wanted.to_lower.update(dict.fromkeys(subtree(index.root)))
        for _ in range(2):
            wanted.pressed[self.cache.arenas[FIRST]] = None
            self.finish(self.plan_once(self.slot_count))

    @precondition(lambda self: self.has_tiers and self.model.leases)
    @rule(data=st.data(), late=SELDOM, sunk=st.booleans(), cut=st.integers(0, 2))
    def promote_for_a_match(self, data: st.DataObject, cut: int, *, late: bool, sunk: bool) -> None:
        """What a match would find in tier 2 is copied first, the source page too if one is wished.

        Perhaps after all pages went down. The sequence may end within a page. With slots for
        all of it nothing of the answer is in tier 2.
        """
        COUNTS["promote_for_a_match"] += 1
        if sunk:
            self.let_go()
            self.sink()
        lease = self.member(data)
        if lease is None or not self.far():
            return
        far = data.draw(st.sampled_from(self.far()))
        tokens, options = far[: len(far) - 4 * cut], self.options(data)
        caller, promotes = self.caller(lease), self.cache.state.tier_policy.promote
        room = len(self.model.free_slots(FIRST)) > len(far) // self.model.width
        mapped = lease.usable(self.model.lasting) >= set(self.model.lasting_in(FIRST))
        idle = not self.under_way
        moves = self.cache.plan_promotion(caller, self.namespace_id, Sequence(tokens), options)
        assert promotes or not moves
        self.judge_plan(moves)
        if late:
            return
        self.finish(moves)
        path = self.model.longest(tokens, len(tokens) // self.model.width)
        match = self.match_and_check(lease, Sequence(tokens), options, path)
        if promotes and room and mapped and idle:
            COUNTS["promoted for a match"] += 1
            COUNTS["source promoted"] += match.source is not None
            runs = [*match.runs, *([] if match.source is None else [match.source.page])]
            assert all(run.tier == FIRST for run in runs), "a match found what was not promoted"

    @precondition(lambda self: self.far() and self.model.leases)
    @rule(data=st.data(), again=st.booleans())
    def read_in_place(self, data: st.DataObject, *, again: bool) -> None:
        """What lies in tier 2 is matched, once or twice, and released; the mover looks."""
        COUNTS["read_in_place"] += 1
        lease = self.member(data)
        if lease is None:
            return
        tokens = data.draw(st.sampled_from(self.far())) + self.tokens([0])
        for _ in range(2 if again else 1):
            pin_id = self.fresh()
            options = MatchOptions(pin_id)
            asked = Sequence(tokens)
            path = self.model.longest(tokens, len(tokens) // self.model.width)
            expected = self.model.expect(lease, asked, b"", options, path)
            caller = self.caller(lease)
            match = self.cache.match(caller, self.namespace_id, asked, options, self.now)
            self.check_match(lease, expected, (asked, options), match)
            COUNTS["read in place"] += any(run.tier == LOWER for run in match.runs)
            self.cache.release(caller, [pin_id], self.now)
            lease.pins.pop(pin_id, None)
            lease.dead_pins.add(pin_id)
        self.finish(self.plan_once(6))

    def far(self) -> list[bytes]:
        """Returns the pages that are in tier 2 alone."""
        return sorted(self.model.lower.keys() - self.model.first.keys())

    def plan_once(self, most: int) -> list[Move]:
        """Let the mover plan; return what it began."""
        moves = self.cache.plan_moves(most)
        assert sum(len(move.transfers) for move in moves) <= most
        self.judge_plan(moves)
        return moves

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), copied=st.sampled_from([True, True, True, False]))
    def finish_moves(self, data: st.DataObject, *, copied: bool) -> None:
        """Some of what was begun before is done, or failed, in whatever order."""
        COUNTS["finish_moves"] += 1
        numbers = st.integers(0, len(self.under_way) - 1)
        chosen = data.draw(st.lists(numbers, min_size=1, unique=True))
        self.finish([self.under_way[number] for number in chosen], copied=copied)

    def judge_plan(self, moves: list[Move]) -> None:
        """Compares what began, and what went for it, with what may."""
        free = {tier: self.model.free_slots(tier) for tier in (FIRST, LOWER)}
        begun = [self.as_model(move) for move in moves]
        self.judge_what_went(begun)
        for move, known in zip(moves, begun, strict=True):
            assert self.model.attached(known.path) == known.path, "a move holds what is not there"
            copies = self.model.in_tier(known.tier)
            held = {slot for _, slot in known.path}
            for prefix, source, target in known.pages:
                assert prefix not in copies, "a page moves to where it is"
                assert source in held, "a move does not hold its source"
                assert target in free[known.tier] | self.model.free_slots(known.tier)
            self.model.moves[id(move)] = known
            self.under_way.append(move)
            COUNTS["pages moving"] += len(known.pages)

    def as_model(self, move: Move) -> ModelMove:
        """Returns a move as the model has it."""
        prefixes = self.model.pages_of(move.tokens())
        path = [(p, pair(slot)) for p, slot in zip(prefixes, move.slots(), strict=True)]
        pages = [
            (prefixes[end - 1], pair(source), pair(target))
            for end, source, target in move.transfers
        ]
        return ModelMove(move.tier, path, pages)

    def judge_what_went(self, begun: list[ModelMove]) -> None:
        """Takes over what moves evicted: copies in tier 2, and in tier 1 those with another."""
        paths = [move.path for move in begun]
        gone_below: set[bytes] = set()
        for tier in (LOWER, FIRST):
            before = set(self.model.cached)
            held = self.model.held(tier) | self.model.held_in(paths, tier)
            gone = self.model.judge_dropped(self.cached_now(tier), tier, held)
            COUNTS[f"copies dropped in tier {tier}"] += len(gone)
            lost = before - set(self.model.cached)
            if tier == FIRST:
                # Its copy in tier 2 may have gone after that in tier 1 did.
                assert lost <= gone_below, "a page without another copy was dropped"
            gone_below = gone
            for page in self.model.cached:
                assert not any(len(p) < len(page) and page.startswith(p) for p in lost)
        self.model.forget_ends()

    def finish_all(self, *, copied: bool) -> None:
        """Finishes all moves under way."""
        self.finish(list(self.under_way), copied=copied)

    def finish(self, moves: list[Move], *, copied: bool = True) -> None:
        """Finishes moves, one after the other."""
        for move in moves:
            self.finish_one(move, copied=copied)

    def finish_one(self, move: Move, *, copied: bool) -> None:
        """Finishes a move, and compare."""
        self.under_way.remove(move)
        known = self.model.moves[id(move)]
        if copied:
            for _, source, target in known.pages:
                self.model.memory[target] = self.model.memory[source]
                self.digests[target] = self.digests[source]
                self.flipped -= {target}
                self.flipped |= {target} if source in self.flipped else set()
        published = self.cache.finish_moves([move], copied=copied)
        del self.model.moves[id(move)]
        now, expected = self.cached_now(move.tier), 0
        copies = self.model.in_tier(move.tier)
        for prefix, source, target in known.pages:
            may = copied and self.may_follow(move.tier, prefix, source, target)
            if now.get(prefix) == target:
                assert may, "a copy was published that may not be"
                copies[prefix] = target
                expected += 1
            else:
                assert move.tier == FIRST or not may, "a copy was not published"
        assert published == expected
        COUNTS[f"copies published in tier {move.tier}"] += published

    def may_follow(self, tier: int, prefix: bytes, source: Slot, target: Slot) -> bool:
        """Returns whether a page may be given a copy: it is there, lacks one, as its parent not."""
        lasting = target[0] in self.model.lasting
        above = prefix[: (len(prefix) - 1) // self.model.width * self.model.width]
        follows = tier == FIRST or not above or above in self.model.lower
        lacks = prefix not in self.model.in_tier(tier)
        return lasting and follows and lacks and self.model.has(prefix, source)

    @invariant()
    def tiers_hold_together(self) -> None:
        """Every page of tier 2 has its parent there, and every page one in some tier."""
        for copies in (self.model.lower, self.model.cached):
            for prefix in copies:
                above = prefix[: (len(prefix) - 1) // self.model.width * self.model.width]
                assert not above or above in copies
