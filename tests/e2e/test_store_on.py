"""Two workers in separate processes share pages and give stock transformers' tokens."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engines.engine_world import (
    CHUNK_TOKENS,
    LIMIT,
    LONGEST,
    NOTHING,
    OUTPUT_TOKENS,
    EngineWorld,
    Judge,
)
from inference_worker.demo.line_process import LineProcess, worker_process
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.model.model import PagedModel
from inference_worker.model.tiny import TINY_MODELS
from inference_worker.pages.layout import PageRef
from kvstore_client.testing import RunningStore

Ids = Callable[[int, int], list[int]]
pytestmark = pytest.mark.store("--tier1-bytes", "64MiB")


@pytest.fixture(scope="module")
def second_processes(
    store: RunningStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, LineProcess]]:
    """Provides a worker in a process of its own for each model, all started at once."""
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path_factory.mktemp("log") / "workers.log").open("wb"))
        started = {
            name: worker_process(
                name, f"tiny-{name}", store.runtime_dir, log=log, longest=LONGEST, threads=1
            )
            for name in TINY_MODELS
        }
        for each in started.values():
            stack.enter_context(each)
        for each in started.values():
            each.wait_ready()
        yield started


@pytest.fixture
def here(model: PagedModel, store: RunningStore) -> Iterator[EngineWorld]:
    """Provides a worker in this process, and checks afterwards that nothing is held."""
    with EngineWorld(model, store.runtime_dir) as world:
        world.wait_open()
        yield world
        assert world.left() == NOTHING


def computed_pages(prompt_tokens: int) -> int:
    """Counts a request's pages, without the last output token, which is never computed."""
    return -(-(prompt_tokens + OUTPUT_TOKENS - 1) // PAGE_TOKENS)


def test_a_second_process_goes_on_from_the_firsts_pages(
    name: str,
    here: EngineWorld,
    second_processes: dict[str, LineProcess],
    judge: Judge,
    text_ids: Ids,
) -> None:
    """Each worker reuses all that the other computed, whole pages in place and the rest copied."""
    second = second_processes[name]
    ids = text_ids(250, 100)
    cold = here.generate(ids)
    assert cold.matched_tokens == 0
    assert len(cold.published_pages) == computed_pages(250)
    assert judge.identical(name, ids, cold.output_ids)

    ids += [*cold.output_ids, *text_ids(20, 101)]
    hit = second.ask(op="generate", prompt_ids=ids, max_tokens=OUTPUT_TOKENS)
    assert hit["store_failure"] is None
    *whole, begun = cold.published_pages
    assert [PageRef(*page) for page in hit["matched_pages"]] == whole
    assert PageRef(*hit["source_page"]) == begun
    assert hit["matched_tokens"] + hit["copied_tokens"] == 250 + OUTPUT_TOKENS - 1
    assert hit["prefilled_tokens"] == len(ids) - (250 + OUTPUT_TOKENS - 1)
    assert judge.identical(name, ids, hit["output_ids"])
    theirs = [PageRef(*page) for page in hit["published_pages"]]
    assert len(whole) + len(theirs) == computed_pages(len(ids))

    ids += [*hit["output_ids"], *text_ids(20, 102)]
    back = here.generate(ids)
    assert [*back.matched_pages, back.source_page] == whole + theirs
    assert judge.identical(name, ids, back.output_ids)

    # Cached whole, to the token: the last one is computed, for its logits.
    front = ids[: 10 * PAGE_TOKENS]
    full = second.ask(op="generate", prompt_ids=front, max_tokens=OUTPUT_TOKENS)
    assert (full["matched_tokens"], full["prefilled_tokens"]) == (9 * PAGE_TOKENS, 1)
    assert judge.identical(name, front, full["output_ids"])

    # Asked again by the other: the token after it is known now.
    known = here.generate(front)
    assert (known.matched_tokens, known.prefilled_tokens) == (10 * PAGE_TOKENS, 0)
    assert known.output_ids == full["output_ids"]
    assert second.ask(op="flush")["flushed"]


def test_a_request_that_fails_keeps_nothing(
    name: str, here: EngineWorld, judge: Judge, text_ids: Ids
) -> None:
    """An exception in a hit releases its pins, slots and memory, and the next request hits."""
    ids = text_ids(250, 103)
    here.generate(ids[:100])

    def fail(pages: list[PageRef]) -> None:
        raise LookupError(len(pages))

    with pytest.raises(LookupError):
        here.generate(ids, on_published=fail)
    assert here.left() == NOTHING
    again = here.generate(ids)
    # Six pages of the first request, and the first chunk of the one that failed.
    assert again.matched_tokens == 6 * PAGE_TOKENS + CHUNK_TOKENS
    assert judge.identical(name, ids, again.output_ids)


def test_two_engines_on_one_prompt_publish_it_once(
    name: str, here: EngineWorld, model: PagedModel, judge: Judge, text_ids: Ids
) -> None:
    """Two engines that compute one prompt at once publish it once, and both answer alike."""
    ids = text_ids(200, 104)
    with EngineWorld(model, here.runtime_dir) as other:
        other.wait_open()
        overtaken: list[list[PageRef]] = []

        def overtake(pages: list[PageRef]) -> None:
            del pages
            if not overtaken:
                overtaken.append(other.generate(ids).published_pages)

        mine = here.generate(ids, on_published=overtake)
        (theirs,) = overtaken
        assert len(mine.published_pages) == CHUNK_TOKENS // PAGE_TOKENS
        assert len(mine.published_pages) + len(theirs) == computed_pages(200)
        assert judge.identical(name, ids, mine.output_ids)
        last = other.generate([*ids, 1, 2, 3])
        assert last.matched_pages == (mine.published_pages + theirs)[: 200 // PAGE_TOKENS]
        assert judge.identical(name, [*ids, 1, 2, 3], last.output_ids)
        assert other.client.flush(LIMIT)


def test_a_request_without_the_store_leaves_no_trace_in_it(
    name: str, here: EngineWorld, judge: Judge, text_ids: Ids
) -> None:
    """A request with use_store=False asks nothing of the store and caches nothing."""
    ids = text_ids(150, 105)
    before = here.client.admin.stats()
    off = here.generate(ids, use_store=False)
    after = here.client.admin.stats()
    assert judge.identical(name, ids, off.output_ids)
    assert after.counters == before.counters
    assert after.arenas == before.arenas
