"""KV events and usage of a server that loads what another one stored.

A router that listens to the second server's own events sees the pages of the store as
``CPU_PINNED``, and those that SGLang has in its own tree as ``GPU``.
"""

import json
from contextlib import ExitStack
from dataclasses import replace

from rig.engine import Engine
from rig.options import PAGE_TOKENS
from rig.stored_pages import StoredPages
from rig.world import World

from engine_cases.case import Case
from engine_cases.prompts import Prompt, prompts
from engine_cases.store import Store, store
from kv_events.engine_listener import EngineListener

# A store of 256 pages, all there from the start, and a server with 160.
STORE = ("--tier1-bytes", "8MiB", "--extent-bytes", "8MiB")
POOL_TOKENS = 2_560
SHARED = prompts(98, 1_000)
[TOKENS] = (each.tokens for each in SHARED)
# These push the shared prompt out of the server's tree, and the others out of the store.
OTHERS = prompts(99, 900, 1_100)
MANY = prompts(100, *(1_100,) * 8)
MEMORY, DEVICE = "CPU_PINNED", "GPU"
SOURCE = "sglang:cached_tokens{host}"


def learn_events(world: World) -> None:
    """Asks the reference all that the cases need."""
    world.reference.answers([*SHARED, *OTHERS, *MANY])


def events(here: World) -> None:
    """Two servers on one store; a consumer follows the events of the second one."""
    with ExitStack() as stack:
        shared = stack.enter_context(store(here.folder / "events", *STORE))
        listener = stack.enter_context(EngineListener(here.folder, "events", PAGE_TOKENS))
        plain = replace(here.options, runtime_dir=shared.runtime_dir)
        told = replace(
            plain,
            pool_tokens=POOL_TOKENS,
            arguments=("--kv-events-config", json.dumps(listener.config)),
        )
        first, second = (
            stack.enter_context(Engine(name, options, here.folder))
            for name, options in (("events-1", plain), ("events-2", told))
        )
        for server in (first, second):
            server.wait_healthy()
        _loaded(here, shared, first, second, listener)
        _evicted_by_sglang(here, shared, second, listener)
        _evicted_by_store(here, shared, first, listener)
        _flushed(here, shared, second, listener)


def _loaded(
    here: World, shared: Store, first: Engine, second: Engine, listener: EngineListener
) -> None:
    pages, wanted = here.wholes(SHARED) // PAGE_TOKENS, here.wholes(SHARED)
    with here.case("events: what another server stored", shared) as case:
        here.check(case, first, SHARED)
        stored = StoredPages(shared, PAGE_TOKENS)
        stored.add(SHARED, here.reference.answers(SHARED))
        stored.wait(case)
        case.require(not listener.pages(MEMORY, TOKENS), "pages were announced before a lookup")
        found = here.check(case, second, SHARED)
        case.require(found.loaded == wanted, f"{found.loaded} of {wanted} tokens were loaded")
        counted = listener.wait(lambda: second.counters().get(SOURCE, 0) == wanted)
        case.require(counted, f"{SOURCE} is {second.counters().get(SOURCE)}, not {wanted}")
        _expect(case, listener, SHARED, in_memory=pages, on_device=pages)
    with here.case("events: again, from the server's own tree", shared) as case:
        found = here.check(case, second, SHARED)
        case.require(found.own == wanted, f"{found.own} of {wanted} tokens were in its tree")


def _evicted_by_sglang(
    here: World, shared: Store, second: Engine, listener: EngineListener
) -> None:
    pages = here.wholes(SHARED) // PAGE_TOKENS
    with here.case("events: evicted by the server, not by the store", shared) as case:
        here.check(case, second, OTHERS, each=True)
        gone = listener.wait(lambda: listener.pages(DEVICE, TOKENS) < pages)
        case.require(gone, "SGLang evicted nothing of the first prompt")
        left = listener.pages(DEVICE, TOKENS)
        case.note = f"{pages - left} of {pages} pages"
        _expect(case, listener, SHARED, in_memory=pages, on_device=left)


def _evicted_by_store(here: World, shared: Store, first: Engine, listener: EngineListener) -> None:
    pages = here.wholes(SHARED) // PAGE_TOKENS
    with here.case("events: evicted by the store", shared) as case:
        here.check(case, first, MANY, each=True)
        held = shared.held()
        case.require(not held, f"the store still holds {held}")
        # SGLang publishes while it is idle, too.
        fresh = listener.wait(lambda: not listener.unknown_to(shared, MEMORY))
        wrong = listener.unknown_to(shared, MEMORY)
        case.require(fresh, f"paths of {wrong} tokens are announced, and the store lacks them")
        left = listener.pages(MEMORY, TOKENS)
        case.require(left < pages, "the store evicted nothing of the first prompt")
        case.note = f"{pages - left} of {pages} pages, of an idle server"


def _flushed(here: World, shared: Store, second: Engine, listener: EngineListener) -> None:
    with here.case("events: flushed", shared) as case:
        here.check(case, second, SHARED)
        case.loaded = 0
        known = listener.wait(lambda: listener.pages(MEMORY, TOKENS) > 0)
        case.require(known, "nothing was announced before the flush")
        second.flush()
        _expect(case, listener, SHARED, in_memory=0, on_device=0)


def _expect(
    case: Case, listener: EngineListener, asked: list[Prompt], *, in_memory: int, on_device: int
) -> None:
    """Waits for events, and requires so many pages of a prompt in each medium."""
    [prompt] = asked
    wanted = {MEMORY: in_memory, DEVICE: on_device}

    def found() -> dict[str, int]:
        return {each: listener.pages(each, prompt.tokens) for each in wanted}

    listener.wait(lambda: found() == wanted)
    case.require(found() == wanted, f"the consumer knows {found()}, not {wanted}")
