"""Pages that were overwritten: the engine still gives stock transformers' tokens."""

from collections.abc import Callable

import pytest

from engines.engine_world import OUTPUT_TOKENS, EngineWorld, Judge
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageRef
from kvstore_client import PageRef as StorePageRef
from kvstore_client.testing import RunningStore

PROMPT_TOKENS = 150
# The store verifies all pages that it hands out, and overwrites slots that are given back.
pytestmark = pytest.mark.store(
    "--verify-rate", "1", "--debug-poison-freed-slots", "--tier1-bytes", "64MiB"
)


@pytest.mark.parametrize("name", ["gemma3"], indirect=True)
def test_tokens_are_right_whatever_page_was_written_over(
    model: PagedModel,
    name: str,
    fresh_store: RunningStore,
    judge: Judge,
    text_ids: Callable[[int, int], list[int]],
) -> None:
    """The pages before a corrupt page are reused. A corrupt source page or next token is not."""
    ids = text_ids(PROMPT_TOKENS, 106)
    with EngineWorld(model, fresh_store.runtime_dir) as world:
        world.wait_open()

        def flip(page: PageRef) -> None:
            world.namespace.page(StorePageRef(page.extent, page.slot))[100] ^= 0x40

        first = world.generate(ids)
        pages = first.published_pages
        assert world.generate(ids).prefilled_tokens == 0
        flip(pages[5])
        again = world.generate(ids)
        assert (again.matched_tokens, again.copied_tokens) == (5 * PAGE_TOKENS, 0)
        assert again.output_ids == first.output_ids
        # The page in which the prompt ends: the answer's first token was known with it.
        assert world.generate(ids).prefilled_tokens == 0
        flip(again.published_pages[PROMPT_TOKENS // PAGE_TOKENS - 5])
        last = world.generate(ids)
        assert last.matched_tokens == PROMPT_TOKENS // PAGE_TOKENS * PAGE_TOKENS
        assert last.copied_tokens == 0
        assert last.prefilled_tokens == PROMPT_TOKENS % PAGE_TOKENS
        assert last.output_ids == first.output_ids
        assert judge.identical(name, ids, last.output_ids)
        counters = world.client.admin.stats().counters
        assert counters.corrupt_page_count == 2
        assert len(first.output_ids) == OUTPUT_TOKENS
