"""A request computes no token that another request computed, and gives the same output."""

from collections.abc import Callable, Iterator

import pytest

from engines.engine_world import NOTHING, EngineWorld
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.request import SamplingOptions
from inference_worker.model.model import PagedModel
from inference_worker.pages.acquisition import LEAST_COPIED
from kvstore_client.testing import running_store

Ids = Callable[[int, int], list[int]]
HOT = SamplingOptions(temperature=30.0, seed=11)


@pytest.fixture(scope="module")
def worlds(paged_models: dict[str, PagedModel]) -> Iterator[EngineWorld]:
    """Returns an engine on a store that the tests share. Each test has texts of its own."""
    with (
        running_store("--tier1-bytes", "64MiB") as store,
        EngineWorld(paged_models["qwen3"], store.runtime_dir) as made,
    ):
        made.wait_open()
        yield made


@pytest.fixture
def world(worlds: EngineWorld) -> Iterator[EngineWorld]:
    """Returns the engine. At the end nothing may be held."""
    yield worlds
    assert worlds.left() == NOTHING


@pytest.mark.parametrize("length", [10, 16, 97, 112, 150])
def test_the_same_prompt_again_runs_nothing_for_its_first_token(
    world: EngineWorld, text_ids: Ids, length: int
) -> None:
    """A repeated prompt of any length is not prefilled. Only the tokens after the first one run."""
    ids = text_ids(length, 200 + length)
    first = world.generate(ids, 12)
    assert (first.prefilled_tokens, first.computed_tokens) == (length, length + 11)
    again = world.generate(ids, 12)
    assert (again.prefilled_tokens, again.computed_tokens) == (0, 11)
    assert again.matched_tokens + again.copied_tokens == length
    assert again.output_ids == first.output_ids
    one = world.generate(ids, 1)
    assert (one.prefilled_tokens, one.computed_tokens, one.published_pages) == (0, 0, [])
    assert one.output_ids == first.output_ids[:1]


def test_what_was_said_is_known_to_its_end(world: EngineWorld, text_ids: Ids) -> None:
    """A request that continues from all computed tokens gets the next token from the store."""
    ids = text_ids(90, 220)
    first = world.generate(ids, 12)
    on = world.generate([*ids, *first.output_ids[:-1]], 3)
    assert (on.prefilled_tokens, on.computed_tokens) == (0, 2)
    assert on.output_ids[0] == first.output_ids[-1]
    alone = world.generate([*ids, *first.output_ids[:-1]], 3, use_store=False)
    assert on.output_ids == alone.output_ids


@pytest.mark.parametrize("shared", [1, LEAST_COPIED - 1])
def test_a_beginning_of_few_tokens_is_computed(
    world: EngineWorld, text_ids: Ids, shared: int
) -> None:
    """A prompt that shares only a few first tokens with another is computed as a cold one."""
    ids = text_ids(40, 270 + shared)
    world.generate(ids, 3)
    other = [*ids[:shared], (ids[shared] + 1) % 256, *text_ids(25, 271)]
    found = world.generate(other, 8)
    assert (found.matched_tokens, found.copied_tokens) == (0, 0)
    assert (found.source_page, found.store_failure) == (None, None)
    assert found.output_ids == world.generate(other, 8, use_store=False).output_ids
    again = world.generate(other, 8)
    assert (again.prefilled_tokens, again.output_ids) == (0, found.output_ids)


@pytest.mark.parametrize("shared", [LEAST_COPIED, 15, 16, 17, 47, 97, 111])
def test_all_shared_tokens_are_reused(world: EngineWorld, text_ids: Ids, shared: int) -> None:
    """A prompt reuses all tokens that it shares with another, and computes the rest."""
    ids = text_ids(112, 230 + shared)
    world.generate(ids, 3)
    other = [*ids[:shared], (ids[shared] + 1) % 256, *text_ids(5, 240)]
    found = world.generate(other, 8)
    assert found.matched_tokens == shared // PAGE_TOKENS * PAGE_TOKENS
    assert found.copied_tokens == shared % PAGE_TOKENS
    assert found.prefilled_tokens == len(other) - shared
    assert found.output_ids == world.generate(other, 8, use_store=False).output_ids


def test_a_sample_is_never_a_next_token(world: EngineWorld, text_ids: Ids) -> None:
    """A greedy request after a sampled one gets the best token, not the drawn one."""
    ids = text_ids(100, 250)
    greedy = world.generate(ids, 6, use_store=False).output_ids
    sampled = world.engine.generate(ids, 6, sampling=HOT)
    assert sampled.output_ids[0] != greedy[0]
    found = world.generate(ids, 6)
    assert found.prefilled_tokens == 0
    assert found.output_ids == greedy


def test_a_sampled_request_runs_its_last_token(world: EngineWorld, text_ids: Ids) -> None:
    """A sampled request reuses all but one token, and draws what it would alone."""
    ids = text_ids(100, 260)
    world.generate(ids, 6)
    found = world.engine.generate(ids, 6, sampling=HOT)
    assert (found.prefilled_tokens, found.computed_tokens) == (1, 6)
    alone = world.engine.generate(ids, 6, sampling=HOT, use_store=False)
    assert found.output_ids == alone.output_ids


def test_going_on_within_a_page_leaves_it_to_others(world: EngineWorld, text_ids: Ids) -> None:
    """Three chats that part within one page, again and again, each say what they say alone."""
    ids = text_ids(40, 270)
    world.generate(ids, 2)
    for seed in (271, 272, 273, 271, 272, 273):
        longer = [*ids, *text_ids(3, seed)]
        found = world.generate(longer, 4)
        assert found.matched_tokens + found.copied_tokens >= len(ids)
        assert found.output_ids == world.generate(longer, 4, use_store=False).output_ids


def test_a_stop_id_that_is_known_ends_the_output(world: EngineWorld, text_ids: Ids) -> None:
    """A full hit computes nothing if its next token is a stop id."""
    ids = text_ids(50, 280)
    (first,) = world.generate(ids, 1).output_ids
    found = world.engine.generate(ids, 9, stop_ids=frozenset([first]))
    assert (found.output_ids, found.computed_tokens) == ([first], 0)
