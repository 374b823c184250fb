"""An engine of two processes, each with half of every page."""

from rig.engine import Engine
from rig.prompts import prompts
from rig.store import Store
from rig.world import World, wholes

ASKED = prompts(45, 300, 1_100)


def ranks(world: World, store: Store, engine: Engine) -> None:
    """Tensor parallelism of two."""
    model = world.options.model.name
    with world.case(f"tensor parallel, {model}: cold, then hit", store) as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        world.check(case, engine, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens")
