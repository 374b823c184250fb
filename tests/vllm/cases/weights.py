"""An engine whose weights are exchanged while it runs, and one that sleeps."""

from collections.abc import Sequence
from pathlib import Path

from rig.engine import Engine
from rig.options import EngineOptions
from rig.reference import Reference
from rig.world import World, loaded, tally, wholes, world

from engine_cases.models import save_model
from engine_cases.prompts import prompts
from engine_cases.store import Store, store
from engine_cases.table import Table

ASKED = prompts(95, 300, 700)
LATER = prompts(96, 400)
KEPT = prompts(97, 500)
# The rank has a process of its own, as under vLLM's servers.
OWN_PROCESS: dict[str, object] = {"distributed_executor_backend": "mp"}
SLEEP_LEVELS = (0, 1, 2)


def weights(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Weights that change in a running engine, and engines that sleep."""
    before = save_model("qwen3", folder / "weights-before")
    after = save_model("qwen3", folder / "weights-after", seed=1)
    with (
        table.group("weights"),
        world(folder, EngineOptions(before), table) as plain,
        Engine("reference-after", EngineOptions(after), folder) as other,
    ):
        for here in map(plain.with_connector, connectors):
            with table.group("weights"):
                _of_connector(here, Reference(other), after, before)


def _of_connector(here: World, after: Reference, weights: Path, first_weights: Path) -> None:
    with (
        store(here.folder / "weights-store", "--tier1-bytes", "256MiB") as shared,
        here.engine(
            "exchanged", shared, local_prefix_cache=True, arguments=OWN_PROCESS
        ) as exchanged,
        here.engine("unchanged", shared, local_prefix_cache=True) as unchanged,
    ):
        _exchanged(here, shared, exchanged, after, weights)
        _not_shared(here, shared, unchanged)
        _emptied_late(here, shared, exchanged, first_weights)
        _sleeps(here, shared, unchanged)


def _sleeps(world: World, store: Store, engine: Engine) -> None:
    """Lets the engine sleep at each level, after which its answers are the same."""
    with world.case("sleep and wake up", store) as case:
        world.check(case, engine, ASKED)
        for level in SLEEP_LEVELS:
            engine.call("sleep", level=level)
            held = store.held()
            case.require(not held, f"asleep at level {level}, the store still holds {held}")
            engine.call("wake_up")
            world.check(case, engine, ASKED)
        engine.forget()
        before = case.loaded
        world.check(case, engine, ASKED)
        found = case.loaded - before
        case.require(found == wholes(ASKED), f"loaded {found} tokens once awake")


def _exchanged(world: World, store: Store, engine: Engine, after: Reference, weights: Path) -> None:
    """Exchanges weights, and empties vLLM's own cache alone: nothing of the old ones is served."""
    with world.case("weights exchanged: no page of the old ones", store) as case:
        world.check(case, engine, ASKED)
        engine.call("collective_rpc", "reload_weights", kwargs={"weights_path": str(weights)})
        engine.forget()
        case.loaded = 0
        expected = after.answers(ASKED)
        case.require(expected != world.reference.answers(ASKED), "the weights change nothing")
        for asked in (ASKED, LATER):
            counts = engine.counts()
            case.compare(engine.ask(asked), after.answers(asked))
            tally(case, engine, counts)
        case.require(case.loaded == 0, f"{case.loaded} tokens of the old weights were loaded")
    with world.case("weights exchanged: its own new pages", store) as case:
        # The first requests were begun before the scheduler knew, and the second ones begin in
        # vLLM's own cache: nothing of them is stored.
        for _ in range(2):
            case.compare(engine.ask(ASKED), expected)
            engine.forget()
        counts = engine.counts()
        case.compare(engine.ask(ASKED), expected)
        found = loaded(tally(case, engine, counts))
        case.require(found == wholes(ASKED), f"loaded {found} of {wholes(ASKED)} tokens")


def _emptied_late(world: World, store: Store, engine: Engine, weights: Path) -> None:
    """Stores nothing of requests that begin in vLLM's own cache, which has the old weights' KV."""
    with world.case("weights exchanged: own cache emptied late", store) as case:
        engine.ask(KEPT)
        engine.call("collective_rpc", "reload_weights", kwargs={"weights_path": str(weights)})
        # The scheduler hears of the exchange by the first, and vLLM answers the second wrongly.
        engine.ask(LATER)
        engine.ask(KEPT)
        engine.forget()
        case.compare(engine.ask(KEPT), world.reference.answers(KEPT))


def _not_shared(world: World, store: Store, engine: Engine) -> None:
    """Asks an engine of the old weights for what the new ones computed."""
    with world.case("weights exchanged: nothing of the new ones shared", store) as case:
        world.check(case, engine, LATER)
        case.require(case.loaded == 0, f"{case.loaded} tokens of the new weights were loaded")
        world.check(case, engine, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens of its own")
