"""A store that is absent, comes, hangs, dies while requests run, and comes again."""

import random
import threading

from rig.engine import Engine
from rig.world import World

from engine_cases.case import Case
from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

POOL_TOKENS = 2_560
# In turns, these push each other out of the server's memory.
TURNS = prompts(70, 810, 900, 1_000)
# Rounds until the server uses its store again, each of some seconds.
MOST_ROUNDS = 40
ROUND_SECONDS = 0.25
KILLS = 6
# The time in which requests of a round match, load, and save, by a guess.
LONGEST_LIFE = 1.5
CROWDS = [
    [TURNS[number % 3].then(prompt(710 + 20 * kill + number, 60)) for number in range(12)]
    for kill in range(KILLS)
]
HUNG = prompts(72, 300, 700)


def learn_deaths(world: World) -> None:
    """Asks the reference all that the cases need."""
    world.reference.answers([*TURNS, *HUNG, *(each for crowd in CROWDS for each in crowd)])


def deaths(world: World, store: Store) -> None:
    """Runs the cases of one server whose store was not started yet."""
    changes = {"pool_tokens": POOL_TOKENS, "extra": {"lookup_timeout": 0.25}}
    with world.engine(store, "bereaved", **changes) as engine:
        _absent(world, store, engine)
        _hung(world, store, engine)
        _killed(world, store, engine)


def _absent(world: World, store: Store, engine: Engine) -> None:
    with world.case("store absent") as case:
        world.check(case, engine, TURNS, each=True)
        world.check(case, engine, TURNS)
        case.require(case.loaded == 0, "a store that is not there gave pages")
    store.process.start()
    with world.case("store came: stored and hit", store) as case:
        _require_hits(world, case, engine)


def _hung(world: World, store: Store, engine: Engine) -> None:
    with world.case("store hung while requests run", store) as case:
        store.process.suspend()
        try:
            world.check(case, engine, HUNG)
            world.check(case, engine, TURNS)
        finally:
            store.process.resume()
        case.require(not engine.failures, f"requests failed: {engine.failures}")
        _require_hits(world, case, engine)


def _killed(world: World, store: Store, engine: Engine) -> None:
    with world.case("store killed while requests run", store) as case:
        numbers = random.Random(20_261_128)
        meanwhile = 0
        for crowd in CROWDS:
            if not _require_hits(world, case, engine):
                return
            before = engine.cached
            engine.begin(crowd)
            # In the middle of matches, loads and saves.
            threading.Event().wait(numbers.uniform(0.0, LONGEST_LIFE))
            store.process.kill()
            case.compare(engine.finish(), world.reference.answers(crowd))
            meanwhile += engine.cached.since(before).loaded
            store.process.start()
        _require_hits(world, case, engine)
        case.require(not engine.failures, f"requests failed: {engine.failures}")
        case.require(meanwhile > 0, "no kill came after a load")
        case.note = f"{KILLS} kills, {meanwhile:,} tokens loaded in those requests"


def _require_hits(world: World, case: Case, engine: Engine) -> bool:
    """Asks in turns until a round hits: nobody says when a server has its store again."""
    for _ in range(MOST_ROUNDS):
        found = world.check(case, engine, TURNS, each=True)
        if found.loaded:
            return True
        threading.Event().wait(ROUND_SECONDS)
    case.require(holds=False, otherwise="the server never hit again")
    return False
