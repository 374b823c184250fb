"""Gemma 3: layers of full attention, and groups of layers with sliding windows."""

from rig.engine import Engine
from rig.world import World, settled, whole, wholes

from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

# Tokens that layers with a window look back: three pages.
WINDOW = 80
# A store of fewer pages than the prompts of one case have in all groups.
HYBRID_BYTES = "8MiB"
ASKED = prompts(90, 300, 900, 1_500)
TAIL = prompt(91, 200)
OTHERS = prompts(94, *(1_100,) * 8)


def hybrids(world: World, store: Store, first: Engine, second: Engine) -> None:
    """Two engines with vLLM's hybrid memory, whose windows are shorter than the prompts."""
    with world.case("hybrid: cold", store) as case:
        world.check(case, first, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        settled(case, store)
        counters = store.stats().counters
        case.note = f"{counters.inserted_page_count} pages stored"
    with world.case("hybrid: whole hit", store) as case:
        world.check(case, first, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} of {wholes(ASKED)}")
    with world.case("hybrid: hits what another stored", store) as case:
        world.check(case, second, ASKED)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} of {wholes(ASKED)}")
    with world.case("hybrid: windows hit where they were kept", store) as case:
        parting = ASKED[2].head(777).then(TAIL)
        world.check(case, second, [parting])
        # vLLM stores windows where a later prompt of the same tokens can end.
        case.require(case.loaded <= whole(777), f"loaded {case.loaded} of 768 shared tokens")
        case.loaded = 0
        settled(case, store)
        world.check(case, first, [parting])
        case.require(case.loaded == whole(977), f"loaded {case.loaded} tokens once stored")
    with world.case("hybrid: goes on after its own prompt", store) as case:
        further = ASKED[1].then(TAIL)
        world.check(case, first, [further])
        case.require(case.loaded == whole(900), f"loaded {case.loaded} of 896 tokens")
    with world.case("hybrid: aborted while running", store) as case:
        asked = [
            each.then(prompt(92 + stop, 400)).aborted(stop) for each in ASKED for stop in (0, 2)
        ]
        world.check(case, first, asked)
        world.check(case, second, [each.aborted(None) for each in asked])


def narrow_hybrids(world: World, store: Store, engine: Engine) -> None:
    """A store that evicts pages of groups one by one."""
    with world.case("hybrid: evicting", store) as case:
        for _ in range(2):
            world.check(case, engine, ASKED)
            world.check(case, engine, OTHERS, each=True)
            world.check(case, engine, [ASKED[2], *OTHERS[:2]], each=True)
        evicted = store.stats().counters.evicted_page_count
        case.require(evicted > 0, "nothing was evicted")
        case.note = f"{evicted} pages were evicted"
        case.loaded = 0
        world.check(case, engine, ASKED[:1])
        world.check(case, engine, ASKED[:1])
        case.require(case.loaded >= whole(300), f"loaded {case.loaded} once stored anew")
