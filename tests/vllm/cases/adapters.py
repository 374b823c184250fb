"""Llama, plain and with LoRA adapters: three sets of KV for the same tokens."""

from dataclasses import replace

from rig.engine import Engine
from rig.world import World, settled, wholes

from engine_cases.prompts import prompts
from engine_cases.store import Store

ASKED = prompts(40, 300, 900)


def adapters(world: World, store: Store, engine: Engine) -> None:
    """Asks the same tokens of the model, and under each adapter."""
    with world.case("Llama: cold, then hit", store) as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        settled(case, store)
        world.check(case, engine, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens")
    plain = world.reference.answers(ASKED)
    for path in world.options.adapters:
        with world.case(f"LoRA {path.name}: its own KV alone", store) as case:
            asked = [replace(each, adapter=path.name) for each in ASKED]
            case.require(world.reference.answers(asked) != plain, "the adapter changes nothing")
            world.check(case, engine, asked)
            case.require(case.loaded == 0, f"{case.loaded} tokens of another adapter were loaded")
            settled(case, store)
            world.check(case, engine, asked)
            case.require(case.loaded == wholes(asked), f"loaded {case.loaded} tokens")
