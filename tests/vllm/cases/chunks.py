"""Pages of several blocks, which vLLM's own connector alone makes."""

from dataclasses import replace

from rig.engine import Engine
from rig.options import PAGE_TOKENS
from rig.world import World, loaded, settled

from engine_cases.case import Case
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store

BLOCKS = 3
TOKENS = BLOCKS * PAGE_TOKENS
CHUNKED: dict[str, object] = {"blocks_per_chunk": BLOCKS}
# Shorter than a page, one token more than pages, ends of pages and of blocks, and within a block.
ASKED = prompts(60, 70, TOKENS + 1, 4 * TOKENS, 7 * TOKENS + PAGE_TOKENS, 1_001)
TAIL = prompt(61, 150)
# A store of 40 pages.
STORE_BYTES = f"{40 * BLOCKS * 64}KiB"
OTHERS = prompts(62, *(1_300,) * 5)


def chunks(world: World, store: Store, first: Engine, second: Engine) -> None:
    """Two engines; the second one's own prefix cache ends within pages."""
    with world.case("pages of 3 blocks: cold", store) as case:
        world.check(case, first, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        settled(case, store)
        stored = store.stats().counters.inserted_page_count
        whole = wholes(ASKED) // TOKENS
        case.require(stored == whole, f"{stored} of {whole} pages were stored")
    with world.case("pages of 3 blocks: whole hit, odd lengths", store) as case:
        _hit(world, case, first, ASKED)
    with world.case("pages of 3 blocks: hits what another stored", store) as case:
        _hit(world, case, second, ASKED)
    with world.case("pages of 3 blocks: partial hit within a page", store) as case:
        parting = ASKED[4].head(777).then(TAIL)
        world.check(case, first, [parting])
        case.require(case.loaded == 768, f"loaded {case.loaded} of 768 shared tokens")
        case.loaded = 0
        settled(case, store)
        _hit(world, case, first, [parting])
    with world.case("pages of 3 blocks: goes on after its own answer", store) as case:
        asked = replace(prompt(63, 500), answer_tokens=100)
        world.check(case, first, [asked])
        settled(case, store)
        answer = world.reference.answers([asked])[0].tokens
        further = replace(asked, tokens=asked.tokens + answer, answer_tokens=12).then(TAIL)
        world.check(case, first, [further])
        case.require(case.loaded == 576, f"loaded {case.loaded} of 576 tokens")
    with world.case("pages of 3 blocks: the rest of a page is loaded", store) as case:
        second.forget()
        # vLLM keeps 21 blocks of it, which are 7 pages, and then 22.
        for head in (21 * PAGE_TOKENS + 1, 22 * PAGE_TOKENS + 1):
            world.check(case, second, [ASKED[4].head(head)])
        counts = world.check(case, second, [ASKED[4]])
        rest = len(ASKED[4].tokens) // TOKENS * TOKENS - 7 * TOKENS
        case.require(loaded(counts) == rest, f"loaded {loaded(counts)} of {rest} tokens")
    with world.case("pages of 3 blocks: begins within a page, stores the rest", store) as case:
        mine = prompt(64, 1_000)
        world.check(case, second, [mine.head(4 * PAGE_TOKENS + 5)])
        world.check(case, second, [mine])
        case.require(case.loaded == 0, f"{case.loaded} tokens were loaded")
        _hit(world, case, first, [mine])


def narrow_chunks(world: World, store: Store, engine: Engine) -> None:
    """A store that evicts pages of several blocks."""
    with world.case("pages of 3 blocks: after eviction", store) as case:
        first = ASKED[4:]
        world.check(case, engine, first)
        world.check(case, engine, OTHERS, each=True)
        evicted = store.stats().counters.evicted_page_count
        case.require(evicted > 0, "nothing was evicted")
        case.require(case.loaded == 0, "prompts that share nothing hit")
        world.check(case, engine, first)
        case.require(case.loaded < wholes(first), "the first prompt was not evicted")
        case.loaded = 0
        _hit(world, case, engine, first)
        case.note = f"{evicted} pages were evicted"


def wholes(asked: list[Prompt]) -> int:
    """Returns the tokens in whole pages. A page that ends with the prompt is loaded too."""
    return sum(len(each.tokens) // TOKENS * TOKENS for each in asked)


def _hit(world: World, case: Case, engine: Engine, asked: list[Prompt]) -> None:
    before = case.loaded
    world.check(case, engine, asked)
    found = case.loaded - before
    case.require(found == wholes(asked), f"loaded {found} of {wholes(asked)} tokens")
