"""Loads with a fault put in on purpose: failed ones end their requests, wrong ones must show."""

from rig.engine import Engine
from rig.world import World

from engine_cases.prompts import prompts
from engine_cases.store import Store
from support.sglang.server import FAILED

POOL_TOKENS = 2_560
TURNS = prompts(20, 900, 1_000, 1_100)
LATER = prompts(21, 700)
ROUNDS = 5
# The share of loads that fail.
SHARE = 0.3
FAILED_LOAD = 503


def learn_faults(world: World) -> None:
    """Asks the reference all that the cases need."""
    world.reference.answers([*TURNS, *LATER])


def faults(world: World, store: Store) -> None:
    """Runs the cases of servers whose linkers have a fault."""
    with world.engine(
        store, "failing", pool_tokens=POOL_TOKENS, extra={"fault_load_fraction": SHARE}
    ) as engine:
        _failing(world, store, engine)
    with world.engine(store, "wrong", faulty="WrongPageLinker") as engine:
        _wrong(world, store, engine)


def _failing(world: World, store: Store, engine: Engine) -> None:
    with world.case("failed loads end with 503, and nothing else changes", store) as case:
        wrong, failed = 0, 0
        for _ in range(ROUNDS):
            answers = engine.ask_each(TURNS)
            expected = world.reference.answers(TURNS)
            for answer, right in zip(answers, expected, strict=True):
                failed += answer.finish == FAILED
                wrong += answer.finish != FAILED and answer != right
        statuses = {each.status for each in engine.failures}
        case.identical = wrong == 0
        case.loaded = engine.cached.loaded
        case.require(wrong == 0, f"{wrong} answers are wrong")
        case.require(failed > 0, "no load failed")
        case.require(statuses == {FAILED_LOAD}, f"requests ended with {statuses}")
        case.require(case.loaded > 0, "nothing was loaded")
        case.note = f"{failed} of {ROUNDS * len(TURNS)} requests ended with 503"
    with world.case("after failed loads: computed and answered", store) as case:
        world.check(case, engine, LATER)


def _wrong(world: World, store: Store, engine: Engine) -> None:
    with world.case("a wrong page in each load: seen", store) as case:
        before = engine.cached
        answers = engine.ask_each(TURNS)
        expected = world.reference.answers(TURNS)
        case.loaded = engine.cached.since(before).loaded
        case.require(case.loaded > 0, "nothing was loaded")
        wrong = sum(a.tokens != b.tokens for a, b in zip(answers, expected, strict=True))
        case.require(wrong > 0, "all answers are right with wrong pages")
        case.note = f"{wrong} of {len(TURNS)} answers are wrong, as they have to be"
