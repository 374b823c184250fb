"""A server whose weights are exchanged while it runs."""

from pathlib import Path

from rig.engine import Engine
from rig.options import ServerOptions
from rig.reference import Reference
from rig.world import World, world

from engine_cases.models import save_model
from engine_cases.prompts import prompts
from engine_cases.store import Store, store
from engine_cases.table import Table

POOL_TOKENS = 2_560
# In turns, these push each other out of the server's memory.
TURNS = prompts(95, 900, 1_000, 1_100)
ROUNDS = 2


def weights(folder: Path, table: Table) -> None:
    """Runs the cases: the server's old pages, its new ones, and those of a server beside it."""
    before = save_model("qwen3", folder / "weights-before")
    after = save_model("qwen3", folder / "weights-after", seed=1)
    with table.group("weights"), store(folder / "weights", "--tier1-bytes", "256MiB") as shared:
        here = world(folder, ServerOptions(before, pool_tokens=POOL_TOKENS), table)
        other = Reference(ServerOptions(after), folder)
        here.reference.answers(TURNS)
        other.answers(TURNS)
        with here.engine(shared, "exchanged") as engine:
            _exchanged(here, shared, engine, other, after)
        with here.engine(shared, "unchanged") as engine:
            _not_shared(here, shared, engine)


def _exchanged(here: World, shared: Store, engine: Engine, other: Reference, weights: Path) -> None:
    expected = other.answers(TURNS)
    with here.case("weights exchanged: no page of the old ones", shared) as case:
        case.require(expected != here.reference.answers(TURNS), "the weights change nothing")
        here.check(case, engine, TURNS, each=True)
        engine.change_weights(weights)
        before = engine.cached
        case.compare(engine.ask_each(TURNS), expected)
        case.loaded = engine.cached.since(before).loaded
        case.require(case.loaded == 0, f"{case.loaded} tokens of the old weights were loaded")
    with here.case("weights exchanged: its own new pages", shared) as case:
        before = engine.cached
        for _ in range(ROUNDS):
            case.compare(engine.ask_each(TURNS), expected)
        case.loaded = engine.cached.since(before).loaded
        case.require(case.loaded > 0, "nothing of its own was loaded")


def _not_shared(here: World, shared: Store, engine: Engine) -> None:
    """Asks a server of the old weights for pages that both computed."""
    with here.case("weights exchanged: nothing of the new ones shared", shared) as case:
        for _ in range(ROUNDS):
            here.check(case, engine, TURNS, each=True)
        case.require(case.loaded > 0, "nothing of the old weights was loaded")
