"""The cache machine's rules about moves between tiers: begun, finished late, or given up."""

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvstore.core.index.radix import subtree
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.requests import MatchOptions, Sequence
from machine.matches import match_and_check
from machine.state import COUNTS, SELDOM, MachineState
from naive.copies import FIRST, LOWER, ModelMove, Slot
from naive.holds import ModelLease

# Pages that a step of a promotion plans at most.
STEP = 2

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


@precondition(lambda machine: machine.has_tiers)
@rule(most=st.integers(1, 6), late=st.booleans(), idle=st.booleans())
def plan_moves(machine: MachineState, most: int, *, late: bool, idle: bool) -> None:
    """The mover looks what there is to do; copies at once, or while other things happen.

    Perhaps after all engines gave back what they held.
    """
    COUNTS["plan_moves"] += 1
    if idle:
        let_go(machine)
    # The second time what was copied is dropped.
    for _ in range(2):
        moves = plan_once(machine, most)
        if not late:
            finish(machine, moves)


def let_go(machine: MachineState) -> None:
    """Releases everything that engines hold."""
    for lease in machine.model.leases.values():
        machine.cache.release(machine.caller(lease), [*lease.pins, *lease.sources], machine.now)
        machine.cache.abort(machine.caller(lease), [*lease.reservations], machine.now)
        lease.dead_pins.update(lease.pins)
        lease.dead_reservations.update(lease.reservations)
        for held in (lease.pins, lease.sources, lease.reservations):
            held.clear()


def sink(machine: MachineState) -> None:
    """Copies all pages that nobody holds down, whatever the policy, and makes room."""
    finish_all(machine, copied=True)
    wanted = machine.cache.state.wanted
    assert wanted is not None  # there are two tiers
    index = machine.cache.namespaces[machine.namespace_id].index
    wanted.to_lower.update(dict.fromkeys(subtree(index.root)))
    for _ in range(2):
        wanted.pressed[machine.cache.arenas[FIRST]] = None
        finish(machine, plan_once(machine, machine.slot_count))


@precondition(lambda machine: machine.has_tiers and machine.model.leases)
@rule(data=st.data(), late=SELDOM, sunk=st.booleans(), cut=st.integers(0, 2))
def promote_for_a_match(
    machine: MachineState, data: st.DataObject, cut: int, *, late: bool, sunk: bool
) -> None:
    """Copies the pages of tier 2 that a match would find, and its source page if it wants one.

    Perhaps after all pages went down. The sequence may end within a page. With slots for
    all of it nothing of the answer is in tier 2.
    """
    COUNTS["promote_for_a_match"] += 1
    if sunk:
        let_go(machine)
        sink(machine)
    lease = machine.member(data)
    if lease is None or not far(machine):
        return
    deep = data.draw(st.sampled_from(far(machine)))
    tokens, options = deep[: len(deep) - 4 * cut], machine.options(data)
    promotes = machine.cache.state.tier_policy.promote
    room = len(machine.model.free_slots(FIRST)) > len(deep) // machine.model.width
    mapped = lease.usable(machine.model.lasting) >= set(machine.model.lasting_in(FIRST))
    idle = not machine.moves
    moves = plan_promotion(machine, lease, Sequence(tokens), options)
    assert promotes or not moves
    if late:
        return
    finish(machine, moves)
    path = machine.model.longest(tokens, len(tokens) // machine.model.width)
    match = match_and_check(machine, lease, Sequence(tokens), options, path)
    if promotes and room and mapped and idle:
        COUNTS["promoted for a match"] += 1
        COUNTS["source promoted"] += match.source is not None
        runs = [*match.runs, *([] if match.source is None else [match.source.page])]
        assert all(run.tier == FIRST for run in runs), "a match found what was not promoted"


def plan_promotion(
    machine: MachineState, lease: ModelLease, sequence: Sequence, options: MatchOptions
) -> list[Move]:
    """Plans what a match would find in tier 2 alone, in steps of a few pages."""
    asked = machine.caller(lease), machine.namespace_id, sequence, options
    moves: list[Move] = []
    while planned := machine.cache.plan_promotion(*asked, STEP):
        assert sum(len(move.transfers) for move in planned) <= STEP
        judge_plan(machine, planned)
        moves += planned
    return moves


@precondition(lambda machine: bool(far(machine) and machine.model.leases))
@rule(data=st.data(), again=st.booleans())
def read_in_place(machine: MachineState, data: st.DataObject, *, again: bool) -> None:
    """Matches and releases pages of tier 2 once or twice; then the mover looks."""
    COUNTS["read_in_place"] += 1
    lease = machine.member(data)
    if lease is None:
        return
    tokens = data.draw(st.sampled_from(far(machine))) + machine.tokens([0])
    for _ in range(2 if again else 1):
        pin_id = machine.fresh()
        options = MatchOptions(pin_id)
        asked = Sequence(tokens)
        path = machine.model.longest(tokens, len(tokens) // machine.model.width)
        expected = machine.model.expect(lease, asked, b"", options, path)
        caller = machine.caller(lease)
        match = machine.cache.match(caller, machine.namespace_id, asked, options, machine.now)
        machine.check_match(lease, expected, (asked, options), match)
        COUNTS["read in place"] += any(run.tier == LOWER for run in match.runs)
        machine.cache.release(caller, [pin_id], machine.now)
        lease.pins.pop(pin_id, None)
        lease.dead_pins.add(pin_id)
    finish(machine, plan_once(machine, 6))


def far(machine: MachineState) -> list[bytes]:
    """Returns the pages of paths that are in tier 2 alone."""
    alone = machine.model.lower.keys() - machine.model.first.keys()
    return sorted(alone.intersection(machine.model.paths()))


def plan_once(machine: MachineState, most: int) -> list[Move]:
    """Plans moves, and returns those that began."""
    moves = machine.cache.plan_moves(most)
    assert sum(len(move.transfers) for move in moves) <= most
    judge_plan(machine, moves)
    return moves


@precondition(lambda machine: machine.moves)
@rule(data=st.data(), copied=st.sampled_from([True, True, True, False]))
def finish_moves(machine: MachineState, data: st.DataObject, *, copied: bool) -> None:
    """Some of what was begun before is done, or failed, in whatever order."""
    COUNTS["finish_moves"] += 1
    numbers = st.integers(0, len(machine.moves) - 1)
    chosen = data.draw(st.lists(numbers, min_size=1, unique=True))
    finish(machine, [machine.moves[number] for number in chosen], copied=copied)


def judge_plan(machine: MachineState, moves: list[Move]) -> None:
    """Compares what began, and what went for it, with what may."""
    free = {tier: machine.model.free_slots(tier) for tier in (FIRST, LOWER)}
    begun = [as_model(machine, move) for move in moves]
    judge_what_went(machine, begun)
    for move, known in zip(moves, begun, strict=True):
        assert machine.model.attached(known.path) == known.path, "a move holds what is not there"
        copies = machine.model.in_tier(known.tier)
        held = {slot for _, slot in known.path}
        for prefix, source, target in known.pages:
            assert prefix not in copies, "a page moves to where it is"
            assert source in held, "a move does not hold its source"
            assert target in free[known.tier] | machine.model.free_slots(known.tier)
        machine.model.moves[id(move)] = known
        machine.moves.append(move)
        COUNTS["pages moving"] += len(known.pages)


def as_model(machine: MachineState, move: Move) -> ModelMove:
    """Returns a move as the model has it."""
    prefixes = machine.model.pages_of(move.tokens())
    path = [(p, pair(slot)) for p, slot in zip(prefixes, move.slots(), strict=True)]
    pages = [
        (prefixes[end - 1], pair(source), pair(target)) for end, source, target in move.transfers
    ]
    return ModelMove(move.tier, path, pages)


def judge_what_went(machine: MachineState, begun: list[ModelMove]) -> None:
    """Takes over what moves evicted: copies in tier 2, and in tier 1 those with another."""
    paths = [move.path for move in begun]
    gone_below: set[bytes] = set()
    every = set(machine.model.cached)
    for tier in (LOWER, FIRST):
        before = set(machine.model.cached)
        held = machine.model.held(tier) | machine.model.held_in(paths, tier)
        gone = machine.model.judge_dropped(machine.cached_now(tier), tier, held)
        COUNTS[f"copies dropped in tier {tier}"] += len(gone)
        lost = before - set(machine.model.cached)
        if tier == FIRST:
            # Its copy in tier 2 may have gone after that in tier 1 did.
            assert lost <= gone_below, "a page without another copy was dropped"
        gone_below = gone
    # A page's copy in tier 1 may have gone first, and then all that was in tier 2.
    lost = every - set(machine.model.cached)
    for page in machine.model.cached:
        assert not any(len(p) < len(page) and page.startswith(p) for p in lost)
    machine.model.forget_ends()


def finish_all(machine: MachineState, *, copied: bool) -> None:
    """Finishes all moves under way."""
    finish(machine, list(machine.moves), copied=copied)


def finish(machine: MachineState, moves: list[Move], *, copied: bool = True) -> None:
    """Finishes moves, one after the other."""
    for move in moves:
        finish_one(machine, move, copied=copied)


def finish_one(machine: MachineState, move: Move, *, copied: bool) -> None:
    """Finishes a move, and compare."""
    machine.moves.remove(move)
    known = machine.model.moves[id(move)]
    if copied:
        for _, source, target in known.pages:
            machine.model.memory[target] = machine.model.memory[source]
            machine.digests[target] = machine.digests[source]
            machine.flipped -= {target}
            machine.flipped |= {target} if source in machine.flipped else set()
    published = machine.cache.finish_moves([move], copied=copied)
    del machine.model.moves[id(move)]
    now, expected = machine.cached_now(move.tier), 0
    copies = machine.model.in_tier(move.tier)
    for prefix, source, target in known.pages:
        may = copied and may_follow(machine, move.tier, prefix, source, target)
        if now.get(prefix) == target:
            assert may, "a copy was published that may not be"
            copies[prefix] = target
            expected += 1
        else:
            assert move.tier == FIRST or not may, "a copy was not published"
    assert published == expected
    COUNTS[f"copies published in tier {move.tier}"] += published


def may_follow(machine: MachineState, tier: int, prefix: bytes, source: Slot, target: Slot) -> bool:
    """Returns whether a page may be given a copy: it is there, lacks one, as its parent not."""
    lasting = target[0] in machine.model.lasting
    above = prefix[: (len(prefix) - 1) // machine.model.width * machine.model.width]
    follows = tier == FIRST or not above or above in machine.model.lower
    lacks = prefix not in machine.model.in_tier(tier)
    return lasting and follows and lacks and machine.model.has(prefix, source)


@invariant()
def tiers_hold_together(machine: MachineState) -> None:
    """Every page of tier 2 has its parent there, and every page one in some tier."""
    for copies in (machine.model.lower, machine.model.cached):
        for prefix in copies:
            above = prefix[: (len(prefix) - 1) // machine.model.width * machine.model.width]
            assert not above or above in copies
