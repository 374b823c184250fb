"""A server whose own memory is so small that it evicts and loads all the time."""

from dataclasses import replace

from rig.engine import Engine
from rig.world import World

from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

# Tokens of the server's own memory.
POOL_TOKENS = 2_560
# A store of 128 pages of 16 tokens, and one that has room for everything.
NARROW_BYTES, WIDE_BYTES = "4MiB", "256MiB"
# In turns, these push each other out of the server's memory.
TURNS = prompts(30, 900, 1_000, 1_100)
ROUNDS = 3
ROOTS = prompts(31, *(400,) * 4)
CROWD = [
    replace(ROOTS[number % 4].then(prompt(320 + number, 60)), answer_tokens=120)
    for number in range(16)
]
FIRST = prompts(33, 1_000)
OTHERS = prompts(34, *(1_100,) * 5)


def learn_eviction(world: World) -> None:
    """Asks the reference all that the cases need."""
    world.reference.answers([*TURNS, *CROWD, *FIRST, *OTHERS])


def eviction(world: World, wide: Store, narrow: Store) -> None:
    """Runs the cases of little memory, in the server and in the store."""
    with world.engine(wide, "tight", pool_tokens=POOL_TOKENS) as engine:
        _server_evicts(world, wide, engine)
    with world.engine(narrow, "narrow", pool_tokens=POOL_TOKENS) as engine:
        _store_evicts(world, narrow, engine)


def _server_evicts(world: World, store: Store, engine: Engine) -> None:
    with world.case("the server evicts, and loads again", store) as case:
        for _ in range(ROUNDS):
            world.check(case, engine, TURNS, each=True)
        wanted = world.wholes(TURNS)
        case.require(case.loaded >= wanted, f"loaded {case.loaded} tokens, less than {wanted}")
    with world.case("more requests than fit, loaded and evicted", store) as case:
        for _ in range(ROUNDS):
            world.check(case, engine, CROWD)
        case.require(case.loaded > 0, "nothing was loaded")
    with world.case("flushed: only pages of its own since then", store) as case:
        engine.flush()
        found = world.check(case, engine, TURNS[:1])
        case.require(found.loaded == 0, f"{found.loaded} tokens of before were loaded")
        for _ in range(ROUNDS):
            world.check(case, engine, TURNS, each=True)
        case.require(case.loaded > 0, "nothing of its own was loaded")


def _store_evicts(world: World, store: Store, engine: Engine) -> None:
    with world.case("the store evicts", store) as case:
        world.check(case, engine, FIRST)
        world.check(case, engine, OTHERS, each=True)
        evicted = store.stats().counters.evicted_page_count
        case.require(evicted > 0, "nothing was evicted")
        case.require(case.loaded == 0, "prompts that share nothing hit")
        world.check(case, engine, FIRST)
        case.require(case.loaded < world.wholes(FIRST), "the first prompt was not evicted")
        case.note = f"{evicted} pages were evicted"
    with world.case("both evict, under load", store) as case:
        for _ in range(ROUNDS):
            world.check(case, engine, CROWD)
