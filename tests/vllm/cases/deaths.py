"""A store that is not there, comes, hangs, dies while requests run, and comes again."""

import random
import threading
import time

from rig.engine import Engine
from rig.world import World, ended_well, loaded, tally

from cases.sharing import ASKED
from engine_cases.case import Case
from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

KILLS = 6
# What those requests take, in seconds, by a guess.
LONGEST_LIFE = 0.6
LOOK_SECONDS = 0.1


def absent(world: World, store: Store, engine: Engine) -> None:
    """The engine was started before its store was, which now starts."""
    with world.case("store absent") as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, "a store that is not there gave pages")
    store.process.start()
    with world.case("store came: stored and hit", store) as case:
        _require_a_hit(world, case, engine)


def hung(world: World, store: Store, engine: Engine) -> None:
    """The store's process is stopped while requests run, and goes on."""
    with world.case("store hung while requests run", store) as case:
        before = engine.counts()
        store.process.suspend()
        try:
            answers = engine.ask(ASKED)
        finally:
            store.process.resume()
        case.compare(answers, world.reference.answers(ASKED))
        case.require(ended_well(answers), "a request failed")
        tally(case, engine, before)
        _require_a_hit(world, case, engine)


def killed(world: World, store: Store, engine: Engine) -> None:
    """The store dies at random while requests run, and is started again."""
    with world.case("store killed while requests run", store) as case:
        numbers = random.Random(20_261_122)
        meanwhile = 0
        for number in range(KILLS):
            if not _require_a_hit(world, case, engine):
                return
            known = [*ASKED, *prompts(60 + number, *(1_000,) * 4)]
            world.check(case, engine, known)
            asked = [each.then(prompt(700 + number, 64)) for each in known]
            asked += prompts(600 + number, *(900,) * 4)
            before = engine.counts()
            engine.begin(asked)
            # While pages are matched, loaded, stored, or given back.
            threading.Event().wait(numbers.uniform(0.0, LONGEST_LIFE))
            store.process.kill()
            answers = engine.finish()
            case.compare(answers, world.reference.answers(asked))
            case.require(ended_well(answers), "a request failed")
            meanwhile += loaded(tally(case, engine, before))
            store.process.start()
        _require_a_hit(world, case, engine)
        case.require(meanwhile > 0, "no kill came after a load")
        case.note = f"{KILLS} kills, {meanwhile:,} tokens loaded in those requests"


def _require_a_hit(world: World, case: Case, engine: Engine) -> bool:
    """Asks one prompt until a hit, for nobody says when an engine has its store again."""
    asked = prompts(70, 810)
    expected = world.reference.answers(asked)

    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        before = engine.counts()
        case.compare(engine.ask(asked), expected)
        found = loaded(engine.counts().since(before))
        case.loaded += found
        if found == 800:
            return True
        threading.Event().wait(LOOK_SECONDS)
    case.require(holds=False, otherwise="the engine never hit again")
    return False
