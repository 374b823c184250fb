"""KV events and usage of a server that loads what another one stored.

A router that listens to the second server's own events sees the pages of the store as ``CPU``,
and the blocks that vLLM loads from there as ``GPU``.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from rig.openai_server import server_of
from rig.options import PAGE_TOKENS
from rig.world import World, settled, wholes

from engine_cases.answer import Answer
from engine_cases.case import Case
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store, store
from kv_events.engine_listener import EngineListener
from support.vllm.server import VllmServer

# A store of 192 pages, all there from the start, and a server with 80.
STORE = ("--tier1-bytes", "12MiB", "--extent-bytes", "12MiB")
DEVICE_PAGES = 80
SHARED = prompts(98, 1_000)
[TOKENS] = (each.tokens for each in SHARED)
PAGES = wholes(SHARED) // PAGE_TOKENS
# These push the shared prompt out of the server's memory, and the others out of the store.
OTHERS = prompts(99, 1_100, 1_100)
MANY = prompts(100, *(1_100,) * 8)
# Too short for a page: vLLM publishes events in its steps alone.
NUDGE = prompt(101, 10)
MEMORY, DEVICE = "CPU", "GPU"


def events(here: World) -> None:
    """Two servers on one store; a consumer follows the events of the second one."""
    with ExitStack() as stack:
        shared = stack.enter_context(store(here.folder / "events", *STORE))
        listener = stack.enter_context(EngineListener(here.folder, "events", PAGE_TOKENS))
        options = replace(here.options, runtime_dir=shared.runtime_dir, local_prefix_cache=True)
        told = {
            "kv_events_config": listener.config | {"enable_kv_cache_events": True},
            "enable_prompt_tokens_details": True,
            "num_gpu_blocks_override": DEVICE_PAGES,
        }
        first = stack.enter_context(server_of(here.folder / "events-1.log", options))
        second = stack.enter_context(
            server_of(here.folder / "events-2.log", replace(options, arguments=told))
        )
        # While the servers start.
        here.reference.answers([*SHARED, *OTHERS, *MANY])
        for server in (first, second):
            server.wait_healthy()
        _loaded(here, shared, first, second, listener)
        _evicted_by_vllm(here, shared, second, listener)
        _evicted_by_store(here, shared, first, second, listener)


def _loaded(
    here: World, shared: Store, first: VllmServer, second: VllmServer, listener: EngineListener
) -> None:
    with here.case("events: what another server stored", shared) as case:
        _check(here, case, first, SHARED)
        settled(case, shared)
        case.require(not listener.pages(MEMORY, TOKENS), "pages were announced before a lookup")
        before = second.counters()
        _check(here, case, second, SHARED, cached=wholes(SHARED))
        found = {name: value - before.get(name, 0) for name, value in second.counters().items()}
        case.loaded = round(found["kvstore_loaded_tokens"])
        for name in (
            "kvstore_loaded_tokens",
            "vllm:external_prefix_cache_hits",
            "vllm:prompt_tokens_cached_by_source{host}",
        ):
            case.require(found.get(name) == wholes(SHARED), f"{name} is {found.get(name)}")
        _expect(case, listener, in_memory=PAGES, on_device=PAGES)
    with here.case("events: again, from the server's own cache", shared) as case:
        before = second.counters()
        _check(here, case, second, SHARED, cached=wholes(SHARED))
        name = "vllm:prompt_tokens_cached_by_source{device}"
        own = second.counters()[name] - before.get(name, 0)
        case.require(own == wholes(SHARED), f"{own} tokens were vLLM's own")


def _evicted_by_vllm(
    here: World, shared: Store, second: VllmServer, listener: EngineListener
) -> None:
    with here.case("events: evicted by the server, not by the store", shared) as case:
        _check(here, case, second, OTHERS)
        gone = listener.wait(lambda: listener.pages(DEVICE, TOKENS) < PAGES)
        case.require(gone, "vLLM evicted nothing of the first prompt")
        left = listener.pages(DEVICE, TOKENS)
        _expect(case, listener, in_memory=PAGES, on_device=left)
        case.note = f"{PAGES - left} of {PAGES} blocks"
        _check(here, case, second, SHARED, cached=wholes(SHARED))
        _expect(case, listener, in_memory=PAGES, on_device=PAGES)


def _evicted_by_store(
    here: World, shared: Store, first: VllmServer, second: VllmServer, listener: EngineListener
) -> None:
    with here.case("events: evicted by the store", shared) as case:
        _check(here, case, first, MANY)
        settled(case, shared)
        fresh = listener.wait(
            lambda: not listener.unknown_to(shared, MEMORY),
            lambda: second.complete(NUDGE.tokens, answer_tokens=1),
        )
        wrong = listener.unknown_to(shared, MEMORY)
        case.require(fresh, f"paths of {wrong} tokens are announced, and the store lacks them")
        left = listener.pages(MEMORY, TOKENS)
        case.require(left < PAGES, "the store evicted nothing of the first prompt")
        case.note = f"{PAGES - left} of {PAGES} pages, without a lookup of them"


def _check(
    here: World,
    case: Case,
    server: VllmServer,
    asked: Sequence[Prompt],
    *,
    cached: int | None = None,
) -> None:
    """Asks, and requires the reference's answers and the number of cached tokens in ``usage``."""
    found = [server.complete(each.tokens, answer_tokens=each.answer_tokens) for each in asked]
    answers = [Answer(each.tokens, "length") for each in found]
    case.compare(answers, here.reference.answers(asked))
    if cached is not None:
        said = sum(each.cached_tokens or 0 for each in found)
        case.require(said == cached, f"usage says {said} of {cached} cached tokens")


def _expect(case: Case, listener: EngineListener, *, in_memory: int, on_device: int) -> None:
    """Waits for events, and requires so many pages of the first prompt in each medium."""
    wanted = {MEMORY: in_memory, DEVICE: on_device}
    listener.wait(lambda: all(listener.pages(each, TOKENS) == wanted[each] for each in wanted))
    found = {each: listener.pages(each, TOKENS) for each in wanted}
    case.require(found == wanted, f"the consumer knows {found}, not {wanted}")
