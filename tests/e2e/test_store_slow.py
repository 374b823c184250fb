"""A store behind a bad line changes no token, and costs a request at most its budget."""

from collections.abc import Callable, Iterator

import pytest

from engines.engine_world import NOTHING, EngineWorld, left_at
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageRef
from kvstore_client.testing import RunningStore, wait_until
from processes.proxy import GOOD, SILENT, Line, Proxy, proxied

Ids = Callable[[int, int], list[int]]
# Seconds: what a call and a whole request may take. What is asserted are shares of it.
CALL_TIMEOUT = 0.6
LINES = {
    "slow": Line(delay=0.25 * CALL_TIMEOUT),
    "silent": SILENT,
    "broken": Line(cut_after=60),
}
pytestmark = pytest.mark.store("--tier1-bytes", "64MiB")


@pytest.fixture(scope="module")
def proxy(store: RunningStore) -> Iterator[Proxy]:
    """Provides a line to the store, which tests make bad and good again."""
    with proxied(store.runtime_dir) as made:
        yield made


@pytest.fixture(scope="module")
def here(models: dict[str, PagedModel], proxy: Proxy) -> Iterator[EngineWorld]:
    """Provides a worker behind the line, with short timeouts."""
    model = models[min(models)]
    with EngineWorld(model, proxy.runtime_dir, call_timeout=CALL_TIMEOUT) as world:
        world.wait_open()
        yield world


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_goes_bad_during_a_request(
    kind: str, here: EngineWorld, store: RunningStore, proxy: Proxy, text_ids: Ids
) -> None:
    """A request whose line goes bad has its tokens in time, and hits return with the line."""
    seeds = iter(range(1000 + 10 * list(LINES).index(kind), 10_000))

    def spoil(pages: list[PageRef]) -> None:
        del pages
        proxy.set(LINES[kind])

    try:
        published: list[PageRef] = []
        while not published:  # on a busy machine a good line may be late as well
            ids = text_ids(250, next(seeds))
            halfway = here.generate(ids, on_published=spoil)
            published = halfway.published_pages
        expected = here.generate(ids, use_store=False).output_ids
        assert halfway.output_ids == expected
        assert here.generate(ids).output_ids == expected
    finally:
        proxy.set(GOOD)
    assert wait_until(lambda: here.generate(ids).matched_tokens > 0)
    assert here.generate(ids).output_ids == expected
    assert wait_until(lambda: here.client.flush(0) and left_at(store.runtime_dir) == NOTHING)
