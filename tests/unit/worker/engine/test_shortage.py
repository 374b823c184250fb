"""With too few slots the youngest give way, all requests end, and no token changes."""

from collections.abc import Callable, Iterator

import pytest

from engines.engine_world import CHUNK_TOKENS, EngineWorld, engine_worlds
from engines.heard import Heard
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.request import GREEDY, FinishReason, Request, SamplingOptions
from inference_worker.model.model import PagedModel
from kvstore_client.testing import RunningStore, running_store

Ids = Callable[[int, int], list[int]]
# The store holds the longest sequence, so an engine alone always finishes.
SLOTS = 24
LONGEST = 14 * PAGE_TOKENS


@pytest.fixture(scope="module", params=["radix", "hash"])
def store(request: pytest.FixtureRequest, qwen: PagedModel) -> Iterator[RunningStore]:
    """Returns a small store, once with each index."""
    size = str(SLOTS * qwen.layout(PAGE_TOKENS).page_bytes)
    sizes = ("--tier1-bytes", size, "--extent-bytes", size)
    with running_store(*sizes, "--prefix-cache-backend", request.param) as running:
        yield running


@pytest.fixture
def worlds(store: RunningStore, qwen: PagedModel) -> Iterator[list[EngineWorld]]:
    """Returns two engines. At the end nothing may be held."""
    with engine_worlds(store, qwen, longest=LONGEST, max_step_tokens=CHUNK_TOKENS) as made:
        yield made


def requests(text_ids: Ids, seed: int, count: int) -> list[Request]:
    """Returns requests of which some share a prefix, and every third is sampled."""
    shared = [text_ids(60, seed + each) for each in range(3)]
    return [
        Request(
            prompt_ids=[*shared[each % 3], *text_ids(each % 40 + 1, seed + 10 + each)],
            max_tokens=30 + each % 20,
            sampling=SamplingOptions(temperature=20.0, seed=each) if each % 3 == 2 else GREEDY,
        )
        for each in range(count)
    ]


@pytest.fixture(scope="module")
def undisturbed(qwen: PagedModel, text_ids: Ids) -> list[list[int]]:
    """Returns the tokens that requests get with room for all and without a store."""
    engine = Engine(qwen, None, longest=LONGEST, private_tokens=12 * LONGEST)
    heard = [Heard() for _ in range(12)]
    for request, each in zip(requests(text_ids, 400, 12), heard, strict=True):
        engine.add(request, each)
    while engine.has_work:
        engine.step()
    assert engine.stats.preemptions == 0
    return [each.tokens for each in heard]


def test_two_engines_short_of_slots_end_all_their_requests(
    worlds: list[EngineWorld], undisturbed: list[list[int]], text_ids: Ids
) -> None:
    """Each request gets the same tokens, preempted or not, sampled or not, on either index."""
    asked = requests(text_ids, 400, 12)
    heard = [Heard() for _ in asked]
    for number, (request, each) in enumerate(zip(asked, heard, strict=True)):
        worlds[number % 2].engine.add(request, each)
    while not all(each.ended for each in heard):
        for world in worlds:
            world.engine.step()
    assert all(each.reason is FinishReason.LENGTH for each in heard)
    gave_way = [each.generation.preemptions for each in heard if each.generation is not None]
    assert sum(gave_way) == sum(world.engine.stats.preemptions for world in worlds) > 0
    assert 0 in gave_way
    assert [each.tokens for each in heard] == undisturbed


def test_one_that_gave_way_can_be_aborted(worlds: list[EngineWorld], text_ids: Ids) -> None:
    """A preempted request can be aborted, its pages stay cached, and others continue."""
    engine = worlds[0].engine
    heard: dict[int, Heard] = {}
    for request in requests(text_ids, 500, 10):
        each = Heard()
        heard[engine.add(request, each)] = each
    while engine.has_work and not engine.stats.preemptions:
        engine.step()
    stats = engine.stats
    assert stats.held_sequences == stats.running < len(heard)
    # A preempted request holds nothing in the store.
    assert worlds[0].left().reservations <= stats.running
    # The youngest running request was preempted. All waiting ones are behind it or were put back.
    waiting = [number for number, each in heard.items() if each.tokens and not each.ended]
    youngest = max(waiting)
    said = len(heard[youngest].tokens)
    engine.abort(youngest)
    assert heard[youngest].reason is FinishReason.ABORT
    assert len(heard[youngest].tokens) == said
    while engine.has_work:
        engine.step()
    assert all(each.ended for each in heard.values())
