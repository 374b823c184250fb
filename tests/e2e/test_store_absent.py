"""Workers that start without a store give the same tokens, and use it once it starts."""

from collections.abc import Callable
from contextlib import ExitStack

from engines.engine_world import NOTHING, EngineWorld, Judge, left_at
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.model.model import PagedModel
from kvstore_client.testing import running_store

Ids = Callable[[int, int], list[int]]


def test_a_store_that_is_absent_at_the_start_is_found_later(
    models: dict[str, PagedModel], judge: Judge, text_ids: Ids
) -> None:
    """Requests run without the store until it starts, and then use it."""
    ids = text_ids(250, 110)
    with running_store("--tier1-bytes", "64MiB", start=False) as store, ExitStack() as stack:
        workers = {
            name: stack.enter_context(EngineWorld(model, store.runtime_dir))
            for name, model in models.items()
        }
        alone = {name: worker.generate(ids) for name, worker in workers.items()}
        for name, found in alone.items():
            assert found.store_failure is not None
            assert (found.matched_tokens, found.published_pages) == (0, [])
            assert found.store_seconds == 0
            assert judge.identical(name, ids, found.output_ids)
        store.start()
        for name, worker in workers.items():
            worker.wait_open()
            cold = worker.generate(ids)
            assert (cold.store_failure, cold.matched_tokens) == (None, 0)
            hit = worker.generate(ids)
            assert hit.matched_tokens == 250 // PAGE_TOKENS * PAGE_TOKENS
            assert hit.prefilled_tokens == 0
            assert alone[name].output_ids == cold.output_ids == hit.output_ids
            assert worker.left() == NOTHING
        assert left_at(store.runtime_dir) == NOTHING
