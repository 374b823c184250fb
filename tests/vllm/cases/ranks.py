"""Engines of two processes, and engines of one beside them."""

from rig.engine import Engine
from rig.world import World, settled, whole, wholes

from engine_cases.case import Case
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store

ASKED = prompts(45, 300, 1_100)
OTHERS = prompts(46, 200, 900)
TAIL = prompt(47, 150)
# Pages that do not depend on the number of ranks.
CANONICAL = {"canonical_layout": True}


def ranks(world: World, store: Store, engine: Engine) -> None:
    """Tensor parallelism of two."""
    model = world.options.model.name
    with world.case(f"tensor parallel, {model}: cold, then hit", store) as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        settled(case, store)
        world.check(case, engine, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens")


def rank_counts(world: World, store: Store, one: Engine, two: Engine) -> None:
    """Engines of one rank and of two, each of which hits what the other stored."""
    model = world.options.model.name
    with world.case(f"canonical, {model}: one rank stores, two hit", store) as case:
        world.check(case, one, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        settled(case, store)
        _hit(world, case, two, ASKED)
    with world.case(f"canonical, {model}: two ranks store, one hits", store) as case:
        world.check(case, two, OTHERS)
        case.require(case.loaded == 0, f"{case.loaded} tokens of other prompts were loaded")
        settled(case, store)
        _hit(world, case, one, OTHERS)
    with world.case(f"canonical, {model}: pages of both in one prompt", store) as case:
        further = ASKED[1].then(TAIL)
        world.check(case, two, [further])
        case.require(case.loaded == whole(1_100), f"loaded {case.loaded} of 1,088 tokens")
        case.loaded = 0
        settled(case, store)
        _hit(world, case, one, [further])


def apart(world: World, store: Store, engine: Engine) -> None:
    """An engine whose pages depend on its two ranks hits nothing of the others."""
    model = world.options.model.name
    with world.case(f"canonical, {model}: not shared without the setting", store) as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, f"{case.loaded} tokens of another layout were loaded")
        settled(case, store)
        _hit(world, case, engine, ASKED)


def _hit(world: World, case: Case, engine: Engine, asked: list[Prompt]) -> None:
    before = case.loaded
    world.check(case, engine, asked)
    found = case.loaded - before
    case.require(found == wholes(asked), f"loaded {found} of {wholes(asked)} tokens")
