"""Hints of requests, which change what a full store evicts first."""

from dataclasses import replace

from rig.engine import Engine
from rig.world import World, loaded, whole

from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

# A store of 128 pages, which these four prompts with their answers do not fit in.
STORE_BYTES = "8MiB"
KEPT = prompt(70, 1_000)
ONCE = replace(prompt(71, 1_000), hint='{"expected_reuse": "one_shot", "priority": -1}')
OTHERS = prompts(72, 1_100, 1_100)
WRONG = ('"one_shot"', '{"expected_reuse": "perhaps"}', '{"horizon": 5}')


def hinted(world: World, store: Store, engine: Engine) -> None:
    """Two prompts, of which the later one is evicted first, since its request says so."""
    with world.case("hints: a one-shot prompt is evicted first", store) as case:
        world.check(case, engine, [KEPT, ONCE, *OTHERS], each=True)
        evicted = store.stats().counters.evicted_page_count
        case.require(evicted > 0, "nothing was evicted")
        kept = loaded(world.check(case, engine, [KEPT]))
        case.require(kept == whole(1_000), f"loaded {kept} tokens of the older prompt")
        once = loaded(world.check(case, engine, [ONCE]))
        case.require(once < whole(1_000), "the one-shot prompt was not evicted")
        case.note = f"{kept} tokens kept, {once} of the one-shot prompt"
    with world.case("hints: malformed ones change nothing", store) as case:
        counts = world.check(case, engine, [replace(KEPT, hint=hint) for hint in WRONG])
        ignored = round(counts.get("kvstore_ignored_hints"))
        case.require(ignored == len(WRONG), f"{ignored} hints were ignored")
