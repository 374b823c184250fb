"""A request that waits in the queue has its pages loaded from the disk meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.engine_world import LIMIT, NOTHING, OUTPUT_TOKENS, EngineWorld, Judge
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.request import Request, RequestOutcome
from inference_worker.model.model import PagedModel
from kvstore_client.testing import RunningStore, running_store, wait_until

Ids = Callable[[int, int], list[int]]
# Whole pages, and one token to compute.
PROMPT_PAGES = 8
PROMPT_TOKENS = PROMPT_PAGES * PAGE_TOKENS + 1
LONG_TOKENS = 400
# More than both requests need: the steps after the last token do nothing.
MOST_STEPS = 200
SIZES = ("--tier1-bytes", "64MiB", "--tier3-bytes", "64MiB", "--tier3-write", "through")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    """Provides a store with a disk."""
    with running_store(*SIZES, "--tier3-path", str(tmp_path / "slab")) as running:
        yield running


def fill(store: RunningStore, model: PagedModel, ids: list[int]) -> list[int]:
    """Computes a prompt, and restarts the store once its disk has the pages; returns the output."""
    with EngineWorld(model, store.runtime_dir) as world:
        world.wait_open()
        output = world.generate(ids).output_ids
        stats = world.client.admin.stats
        assert wait_until(lambda: stats().tier_3.page_count >= PROMPT_PAGES), store.log
        assert world.left() == NOTHING
    store.restart()
    return output


@pytest.mark.parametrize("name", ["qwen3"], indirect=True)
def test_the_second_request_is_loaded_while_the_first_computes(
    name: str, model: PagedModel, store: RunningStore, judge: Judge, text_ids: Ids
) -> None:
    """Its match finds all its pages in memory, and its tokens are those of the first run."""
    ids, long = text_ids(PROMPT_TOKENS, 300), text_ids(LONG_TOKENS, 301)
    wanted = fill(store, model, ids)
    with EngineWorld(model, store.runtime_dir, max_running=1) as world:
        world.wait_open()
        loaded = lambda: world.client.admin.stats().counters.loaded_page_count  # noqa: E731
        first, second = (RequestOutcome(lambda _: None) for _ in range(2))
        world.engine.add(Request(prompt_ids=long, max_tokens=1), first)
        number = world.engine.add(Request(prompt_ids=ids, max_tokens=OUTPUT_TOKENS), second)
        world.engine.step()
        assert not first.there
        assert wait_until(lambda: loaded() >= PROMPT_PAGES, LIMIT), store.log
        assert world.engine.generation(number).matched_tokens == 0
        for _ in range(MOST_STEPS):
            world.engine.step()
        assert first.there
        found = second.generation()
        assert (found.disk_tokens, found.remote_tokens) == (0, 0)
        assert found.matched_tokens >= PROMPT_PAGES * PAGE_TOKENS
        assert found.prefilled_tokens <= 1
        assert found.output_ids == wanted
        assert judge.identical(name, ids, found.output_ids)
        assert world.engine.stats.disk_tokens == 0
        assert world.left() == NOTHING


@pytest.mark.parametrize("name", ["qwen3"], indirect=True)
def test_a_request_that_does_not_wait_says_what_its_match_loaded(
    name: str, model: PagedModel, store: RunningStore, judge: Judge, text_ids: Ids
) -> None:
    """Nobody prefetched its pages, so they count as the disk's."""
    ids = text_ids(PROMPT_TOKENS, 302)
    fill(store, model, ids)
    with EngineWorld(model, store.runtime_dir) as world:
        world.wait_open()
        found = world.generate(ids)
        assert found.disk_tokens == PROMPT_PAGES * PAGE_TOKENS
        assert found.reused.memory == found.reused.total - found.disk_tokens
        assert world.engine.stats.disk_tokens == found.disk_tokens
        assert judge.identical(name, ids, found.output_ids)
        assert world.left() == NOTHING
