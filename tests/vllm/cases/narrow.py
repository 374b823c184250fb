"""Too little memory, in the store and in vLLM."""

from dataclasses import replace

from rig.engine import Engine
from rig.world import World, wholes

from engine_cases.prompts import prompts
from engine_cases.store import Store

# In a store of 128 pages.
STORE_BYTES = "8MiB"
FIRST = prompts(30, 1_000)
OTHERS = prompts(31, *(1_100,) * 5)
# Of eight such requests, each in the end 17 pages long, this many do not fit.
DEVICE_PAGES = 112
CROWD = [replace(each, answer_tokens=120) for each in prompts(32, *(400,) * 8)]


def narrow(world: World, store: Store, engine: Engine) -> None:
    """A store that evicts, and vLLM that preempts."""
    with world.case("after eviction", store) as case:
        world.check(case, engine, FIRST)
        world.check(case, engine, OTHERS, each=True)
        evicted = store.stats().counters.evicted_page_count
        case.require(evicted > 0, "nothing was evicted")
        case.require(case.loaded == 0, "prompts that share nothing hit")
        world.check(case, engine, FIRST)
        case.require(case.loaded < wholes(FIRST), "the first prompt was not evicted")
        case.loaded = 0
        world.check(case, engine, FIRST)
        case.require(case.loaded == wholes(FIRST), f"loaded {case.loaded} once stored anew")
        case.note = f"{evicted} pages were evicted"
    preempted(world, store, engine, "preempted")


def preempted(world: World, store: Store, engine: Engine, name: str) -> None:
    """More requests than fit into vLLM, twice."""
    with world.case(name, store) as case:
        counts = world.check(case, engine, CROWD)
        again = world.check(case, engine, CROWD)
        times = round(counts.get("vllm:num_preemptions") + again.get("vllm:num_preemptions"))
        case.note = f"{times} preemptions"
        case.require(times > 0, "vLLM preempted nothing")
        case.require(case.loaded > 0, "nothing was loaded")
