"""A store that is killed, stopped or suspended during a request changes no token of it."""

from collections.abc import Callable
from typing import Any

import pytest

from engines.engine_world import LIMIT, NOTHING, EngineWorld, Judge
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.request_run import OnPublished
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageRef
from kvstore_client.testing import RunningStore
from pages.stamped_pages import memfd_mappings

Ids = Callable[[int, int], list[int]]
# An extent for either size of page, and room for no more: mappings are easy to count.
ROOM = ("--tier1-bytes", "32MiB", "--extent-bytes", "16MiB")
MATCHED = 7 * PAGE_TOKENS
# A prompt of 250 tokens of which 112 are matched is published in three chunks; then decoding.
MOMENTS = {"prefill": 1, "decoding": 4}
ENDINGS: dict[str, Callable[[RunningStore], Any]] = {
    "killed": RunningStore.kill,
    "stopped": RunningStore.stop,
}


def at_visit(number: int, action: Callable[[], object]) -> tuple[OnPublished, list[int]]:
    """Returns a callback that acts at its ``number``-th call, and the list of its calls."""
    calls: list[int] = []

    def visit(pages: list[PageRef]) -> None:
        calls.append(len(pages))
        if len(calls) == number:
            action()

    return visit, calls


# Each test brings the store down and leaves it running again.
pytestmark = pytest.mark.store(*ROOM)


@pytest.mark.parametrize(("ending", "moment"), [("killed", "prefill"), ("stopped", "decoding")])
def test_a_store_that_ends_during_a_request(
    store: RunningStore,
    name: str,
    model: PagedModel,
    judge: Judge,
    text_ids: Ids,
    ending: str,
    moment: str,
) -> None:
    """A request survives its store, the next one runs alone, and a new store is used again."""
    mappings = memfd_mappings()
    ids = text_ids(250, 120 + MOMENTS[moment])  # new to the store, which the tests share
    with EngineWorld(model, store.runtime_dir) as here:
        here.wait_open()
        here.generate(ids[:120])
        on_published, calls = at_visit(MOMENTS[moment], lambda: ENDINGS[ending](store))
        halfway = here.generate(ids, on_published=on_published)
        assert halfway.matched_tokens == MATCHED
        assert len(calls) == MOMENTS[moment]
        assert len(halfway.published_pages) == sum(calls)
        assert judge.identical(name, ids, halfway.output_ids)

        alone = here.generate(ids)
        assert alone.store_failure is not None
        assert (alone.matched_tokens, alone.published_pages) == (0, [])
        assert alone.store_seconds == 0
        assert alone.output_ids == halfway.output_ids

        store.start()
        here.wait_open()
        # The old store's memory is not mapped any more: no view of it was kept.
        assert memfd_mappings() == mappings + 1
        cold = here.generate(ids)
        assert (cold.store_failure, cold.matched_tokens) == (None, 0)
        hit = here.generate(ids)
        assert hit.matched_pages == cold.published_pages[: len(ids) // PAGE_TOKENS]
        assert cold.output_ids == hit.output_ids == halfway.output_ids
        assert here.left() == NOTHING
    assert memfd_mappings() == mappings


def test_a_store_that_hangs_during_a_request(
    store: RunningStore, name: str, model: PagedModel, judge: Judge, text_ids: Ids
) -> None:
    """A request survives a hung store, later ones do not wait, and the store is used again."""
    ids = text_ids(250, 130)
    with EngineWorld(model, store.runtime_dir, call_timeout=5.0) as here:
        here.wait_open()
        here.generate(ids[:120])
        on_published, calls = at_visit(1, store.suspend)
        halfway = here.generate(ids, on_published=on_published)
        assert (halfway.matched_tokens, calls) == (MATCHED, [4])
        assert judge.identical(name, ids, halfway.output_ids)
        alone = here.generate(ids)
        assert alone.store_failure is not None
        assert alone.store_seconds < halfway.store_seconds / 2
        assert alone.output_ids == halfway.output_ids
        store.resume()
        assert here.client.wait_connected(LIMIT)
        here.wait_open()
        assert here.left() == NOTHING
        hit = here.generate(ids)
        # What was published before it hung; what it was asked to insert then may have come in.
        assert hit.matched_pages[:11] == halfway.matched_pages + halfway.published_pages
        assert hit.output_ids == halfway.output_ids
        assert here.left() == NOTHING
