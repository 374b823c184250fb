"""A store that is far too small caches what fits, and the worker computes the rest."""

from collections.abc import Callable

from engines.engine_world import NOTHING, EngineWorld, Judge
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.model.model import PagedModel
from inference_worker.pages.acquisition import RESERVE_AHEAD
from kvstore_client import connect_admin
from kvstore_client.testing import running_store

Ids = Callable[[int, int], list[int]]
SLOTS = 8


def test_a_store_of_eight_pages_changes_no_token(
    name: str, model: PagedModel, judge: Judge, text_ids: Ids
) -> None:
    """Prompts, outputs and hits that do not fit have the same tokens."""
    size = str(SLOTS * model.layout(PAGE_TOKENS).page_bytes)
    with (
        running_store("--tier1-bytes", size, "--extent-bytes", size) as store,
        EngineWorld(model, store.runtime_dir) as here,
    ):
        here.wait_open()
        large = text_ids(250, 130)
        first = here.generate(large)
        assert (first.store_failure, len(first.published_pages)) == (None, SLOTS)
        assert judge.identical(name, large, first.output_ids)
        assert here.left() == NOTHING
        again = here.generate(large)
        assert again.matched_pages == first.published_pages
        assert judge.identical(name, large, again.output_ids)
        assert here.left() == NOTHING

        # Its prompt and what is reserved ahead fit exactly; what it goes on to say does not.
        small = text_ids((SLOTS - RESERVE_AHEAD) * PAGE_TOKENS, 131)
        grown = here.generate(small, 120)
        assert (grown.matched_tokens, len(grown.published_pages)) == (0, SLOTS)
        assert judge.identical(name, small, grown.output_ids)
        assert here.left() == NOTHING

        # All of the store is matched, so there is no slot for the rest.
        longer = [*small, *grown.output_ids, *text_ids(50, 132)]
        hit = here.generate(longer)
        assert hit.matched_pages == grown.published_pages
        assert hit.published_pages == []
        assert judge.identical(name, longer, hit.output_ids)
        assert here.left() == NOTHING

        # Others need the room: unpinned pages make way.
        other = text_ids(40, 133)
        evicting = here.generate(other)
        assert len(evicting.published_pages) == -(-(40 + 23) // PAGE_TOKENS)
        assert judge.identical(name, other, evicting.output_ids)
        assert here.left() == NOTHING
        with connect_admin(store.runtime_dir) as admin:
            (arena,) = admin.stats().arenas
        assert arena.slot_count == SLOTS
