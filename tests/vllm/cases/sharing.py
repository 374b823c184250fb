"""Two engines on one store: what is hit, and that it is what would be computed."""

from dataclasses import replace

from rig.engine import Engine
from rig.world import World, loaded, taken, whole, wholes

from engine_cases.case import Case
from engine_cases.prompts import prompt, prompts
from engine_cases.store import Store

LENGTHS = (100, 500, 1_000, 1_500)
ASKED = prompts(1, *LENGTHS)
ALIGNED = prompt(2, 640)
TAIL = prompt(3, 300)


def first_engine(world: World, store: Store, engine: Engine, *, small: bool) -> None:
    """Loads beside its steps, and keeps nothing in vLLM's own prefix cache."""
    with world.case("cold", store) as case:
        world.check(case, engine, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        stored = store.stats().counters.inserted_page_count
        case.require(stored >= wholes(ASKED) // 32, f"only {stored} pages were stored")
    with world.case("whole hit", store) as case:
        _hit(world, case, engine, wholes(ASKED))
        # The engine stated how fast it had computed them.
        timed = store.stats().counters.timed_token_count
        case.require(timed >= wholes(ASKED), f"{timed} matched tokens have a prefill speed")
    with world.case("partial hit", store) as case:
        parting = ASKED[3].head(777).then(TAIL)
        world.check(case, engine, [parting])
        case.require(case.loaded == 768, f"loaded {case.loaded} of 768 shared tokens")
    if small:
        return
    with world.case("prompt that ends at a page's end", store) as case:
        world.check(case, engine, [ALIGNED])
        world.check(case, engine, [ALIGNED])
        # vLLM runs the last token, whose page may be loaded too.
        case.require(case.loaded in {608, 640}, f"loaded {case.loaded} of 640 tokens")
    with world.case("goes on after its own answer", store) as case:
        first = replace(prompt(4, 990), answer_tokens=60)
        world.check(case, engine, [first])
        answer = world.reference.answers([first])[0].tokens
        further = replace(first, tokens=first.tokens + answer, answer_tokens=12).then(TAIL)
        world.check(case, engine, [further])
        # The KV of the last token of an answer is never computed.
        case.require(case.loaded == 1_024, f"loaded {case.loaded} of 1,024 tokens")
    with world.case("another salt hits nothing", store) as case:
        salted = [replace(each, salt="another tenant's") for each in ASKED]
        world.check(case, engine, salted)
        case.require(case.loaded == 0, f"{case.loaded} tokens were loaded across salts")
        world.check(case, engine, salted)
        case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} under the same salt")
    with world.case("16 concurrent requests on one prefix", store) as case:
        many = [ASKED[2].then(prompt(50 + number, 150)) for number in range(16)]
        world.check(case, engine, many)
        case.require(case.loaded == 16 * whole(1_000), f"loaded {case.loaded} tokens")
    with world.case("aborted while running", store) as case:
        _aborts(world, case, engine)


def second_engine(world: World, store: Store, engine: Engine, *, small: bool) -> None:
    """Another process: its steps wait for loads, and vLLM keeps its own prefix cache."""
    with world.case("two engines: hits what another stored", store) as case:
        _hit(world, case, engine, wholes(ASKED))
    if small:
        return
    with world.case("local prefix cache: nothing left to load", store) as case:
        counts = world.check(case, engine, ASKED)
        local = counts.labelled("vllm:prompt_tokens_by_source", "local_cache_hit")
        case.require(local == wholes(ASKED), f"{local:.0f} tokens were local")
        case.require(case.loaded == 0, f"{case.loaded} tokens were loaded again")
        case.note = f"{local:,.0f} local"
    with world.case("local prefix cache: the rest is loaded", store) as case:
        engine.forget()
        world.check(case, engine, [ASKED[3].head(700)])
        counts = world.check(case, engine, [ASKED[3]])
        rest = whole(1_500) - whole(700)
        case.require(loaded(counts) == rest, f"loaded {loaded(counts)} of {rest} tokens")
    with world.case("local prefix cache emptied: a hit again", store) as case:
        engine.forget()
        _hit(world, case, engine, wholes(ASKED))


def _hit(world: World, case: Case, engine: Engine, tokens: int) -> None:
    """Requires a hit of that many tokens, on which connector, vLLM and store agree."""
    counts = world.check(case, engine, ASKED)
    case.require(case.loaded == tokens, f"loaded {case.loaded} of {tokens} tokens")
    case.require(taken(counts) == tokens, f"vLLM took {taken(counts)} of {tokens} tokens")


def _aborts(world: World, case: Case, engine: Engine) -> None:
    """Aborts requests before, in and after their loads and saves; others go on."""
    cold = prompts(6, *(1_200,) * 4)
    stops = (0, 1, 3, 8)
    asked = [replace(each, abort_after=stop) for each in ASKED for stop in stops]
    asked += [replace(each, abort_after=stop) for each, stop in zip(cold, stops, strict=True)]
    world.check(case, engine, [*asked, *ASKED])
    case.require(case.loaded > 0, "nothing was loaded")
    # What an aborted request left behind is whole or absent.
    world.check(case, engine, cold)
    world.check(case, engine, cold)
