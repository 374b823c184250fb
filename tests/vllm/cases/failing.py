"""Loads that fail: requests go on, and answer the same."""

from collections.abc import Sequence

from rig.engine import Engine
from rig.world import World, ended_well, tally

from cases.sharing import ASKED
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store

SHARE = 0.3
ROUNDS = 6


def failing_loads(world: World, store: Store, engine: Engine, name: str) -> None:
    """Asks what is stored again and again, 30 % of whose loads fail."""
    with world.case(f"30 % of the loads fail, {name}", store) as case:
        mine = prompts(20, *(200, 900, 1_400))
        world.check(case, engine, mine)
        before = engine.counts()
        for number in range(ROUNDS):
            tails = [each.then(prompt(900 + number, 40)) for each in (*ASKED, *mine)]
            answers = engine.ask(tails)
            case.compare(answers, world.reference.answers(tails))
            case.require(ended_well(answers), "a request failed")
            engine.forget()
        counts = tally(case, engine, before)
        failed = round(counts.get("kvstore_fault_loads"))
        case.note = f"{failed} loads failed by injection"
        case.require(failed > 0, "no load failed")
        case.require(case.loaded > 0, "nothing was loaded")


def wrong_page(
    world: World, store: Store, engine: Engine, name: str, asked: Sequence[Prompt] = ASKED
) -> None:
    """Loads with a seeded fault: requires that answers differ if one page of each is another."""
    with world.case(name, store) as case:
        asked = list(asked)
        before = engine.counts()
        answers = engine.ask(asked)
        expected = world.reference.answers(asked)
        tally(case, engine, before)
        case.require(case.loaded > 0, "nothing was loaded")
        wrong = sum(a.tokens != b.tokens for a, b in zip(answers, expected, strict=True))
        case.require(wrong > 0, "all answers are right with wrong pages")
        case.note = f"{wrong} of {len(asked)} answers are wrong, as they have to be"
