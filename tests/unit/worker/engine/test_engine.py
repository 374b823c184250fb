"""The engine gives the reference's tokens from any pages, and holds nothing afterwards."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from engines.engine_world import CHUNK_TOKENS, NOTHING, EngineWorld
from engines.heard import Heard
from inference_worker.attention.step import Step
from inference_worker.demo.reference import Reference
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.request import Request, SamplingOptions
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadRequestError,
    BadSaltError,
    RequestTooLongError,
)
from inference_worker.model.model import PagedModel
from inference_worker.model.tiny import TINY_MODELS
from inference_worker.pages.layout import PageRef

Ids = Callable[[int, int], list[int]]


@pytest.fixture(scope="module")
def references(stock_models: dict[str, PreTrainedModel]) -> dict[str, Reference]:
    """Returns stock transformers for each tiny model."""
    return {name: Reference(module) for name, module in stock_models.items()}


@pytest.fixture
def alone(qwen: PagedModel) -> Engine:
    """Returns an engine without a store."""
    return Engine(qwen, None, longest=200)


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
@pytest.mark.parametrize("chunk_tokens", [5, 64, 1000])
def test_without_a_store_the_tokens_are_the_references(
    paged_models: dict[str, PagedModel],
    references: dict[str, Reference],
    text_ids: Ids,
    name: str,
    chunk_tokens: int,
) -> None:
    """Prompt and output over several pages give stock transformers' ids, for any chunk size."""
    engine = Engine(paged_models[name], None, longest=150, max_step_tokens=chunk_tokens)
    ids = text_ids(101, 60)
    found = engine.generate(ids, 40)
    assert found.output_ids == references[name].answer(ids, 40)["output_ids"]
    assert (found.prompt_tokens, found.matched_tokens, found.prefilled_tokens) == (101, 0, 101)
    assert (found.matched_pages, found.published_pages, found.store_failure) == ([], [], None)
    assert (found.copied_tokens, found.computed_tokens) == (0, 101 + 39)
    assert found.time_to_first_token > 0
    assert engine.private_slots_used == 0


def test_a_stop_id_ends_the_output(alone: Engine, text_ids: Ids) -> None:
    """The stop id is the last one given."""
    ids = text_ids(20, 61)
    free = alone.generate(ids, 12).output_ids
    stop = free[5]
    assert (
        alone.generate(ids, 12, stop_ids=frozenset([stop])).output_ids
        == (free[: free.index(stop) + 1])
    )


def test_tokens_are_told_as_they_come(alone: Engine, text_ids: Ids) -> None:
    """The callback gets each id before the next one is computed, including the last."""
    told: list[int] = []
    found = alone.generate(text_ids(20, 67), 7, on_token=told.append)
    assert told == found.output_ids
    with pytest.raises(ZeroDivisionError):
        alone.generate(text_ids(20, 67), 7, on_token=lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    assert alone.private_slots_used == 0


def test_sampled_tokens_follow_their_seed(alone: Engine, text_ids: Ids) -> None:
    """A seed repeats its tokens. Another seed gives others, and neither gives the greedy ones."""
    ids = text_ids(40, 68)

    def sampled(seed: int) -> list[int]:
        options = SamplingOptions(temperature=20.0, seed=seed)
        return alone.generate(ids, 12, sampling=options).output_ids

    first = sampled(1)
    assert sampled(1) == first
    assert sampled(2) != first
    assert alone.generate(ids, 12).output_ids not in (first, sampled(2))


@pytest.mark.parametrize(
    ("prompt", "tokens", "error"),
    [
        ([], 4, BadPromptError),
        ([1], 0, BadLengthError),
        ([1, 256], 4, BadPromptError),
        ([1, -1], 4, BadPromptError),
    ],
)
def test_requests_without_sense_are_refused(
    alone: Engine, prompt: list[int], tokens: int, error: type[BadRequestError]
) -> None:
    """An empty prompt, 0 tokens to generate, and ids that the model does not have raise."""
    with pytest.raises(error, match="token"):
        alone.generate(prompt, tokens)
    assert alone.private_slots_used == 0


def test_a_salt_that_cannot_be_written_is_refused(alone: Engine) -> None:
    """A salt with half a surrogate pair, which JSON allows, is refused before any step."""
    with pytest.raises(BadSaltError, match="surrogates"):
        alone.add(Request(prompt_ids=[1], max_tokens=1, cache_salt="\ud800"), Heard())
    assert not alone.has_work


def test_ids_that_are_no_integers_are_refused(alone: Engine) -> None:
    """A number with a fraction is not a token id."""
    with pytest.raises(TypeError):
        alone.generate([1.5], 4)  # type: ignore[list-item]


def test_a_request_fits_or_is_refused(alone: Engine, text_ids: Ids) -> None:
    """Prompt and output may fill the private arena exactly, and no more."""
    assert len(alone.generate(text_ids(190, 62), 10).output_ids) == 10
    with pytest.raises(RequestTooLongError) as caught:
        alone.generate(text_ids(190, 62), 11)
    assert (caught.value.wanted, caught.value.longest) == (201, 200)


def test_the_longest_is_the_models_where_none_is_named(qwen: PagedModel) -> None:
    """By default the private arena holds a sequence of the model's longest length."""
    with pytest.raises(RequestTooLongError) as caught:
        Engine(qwen, None).generate([1], qwen.max_tokens)
    assert caught.value.longest == qwen.max_tokens


def test_pages_are_published_and_used_in_place(
    world: EngineWorld, references: dict[str, Reference], text_ids: Ids
) -> None:
    """Each chunk's whole pages are announced once and in order, and all are reused."""
    ids = text_ids(150, 63)
    told: list[list[PageRef]] = []
    first = world.generate(ids, 12, on_published=told.append)
    assert world.namespace.prefill_tokens_per_second > 0
    # Chunks of 64 end in 64, 128 and 150. Decoding completes the tenth page and begins another.
    assert [len(pages) for pages in told] == [4, 4, 1, 1, 1]
    assert first.published_pages == [page for pages in told for page in pages]
    assert (first.matched_tokens, first.source_page) == (0, None)
    longer = [*ids, *first.output_ids, 7, 8, 9]
    second = world.generate(longer, 12)
    assert second.matched_pages == first.published_pages[:-1]
    assert second.source_page == first.published_pages[-1]
    assert (second.matched_tokens, second.copied_tokens) == (10 * PAGE_TOKENS, 1)
    assert second.prefilled_tokens == len(longer) - 10 * PAGE_TOKENS - 1
    reference = references["qwen3"]
    assert first.output_ids == reference.answer(ids, 12)["output_ids"]
    assert second.output_ids == reference.answer(longer, 12)["output_ids"]


def test_the_first_token_does_not_wait_for_the_last_insert(
    world: EngineWorld, text_ids: Ids
) -> None:
    """Two chunks of three are published before the first token, and the third after it."""
    events: list[str] = []
    found = world.engine.generate(
        text_ids(2 * CHUNK_TOKENS + 40, 81),
        2,
        on_token=lambda _: events.append("token"),
        on_published=lambda pages: events.append(f"{len(pages)} pages"),
    )
    whole = f"{CHUNK_TOKENS // PAGE_TOKENS} pages"
    assert events[:4] == [whole, whole, "token", f"{40 // PAGE_TOKENS} pages"]
    assert len(found.published_pages) == 2 * CHUNK_TOKENS // PAGE_TOKENS + 3


def test_each_position_is_computed_once(
    world: EngineWorld, qwen: PagedModel, monkeypatch: pytest.MonkeyPatch, text_ids: Ids
) -> None:
    """Each position after the reused ones is computed once, so no published page changes."""
    spans: list[tuple[int, int]] = []
    forward = qwen.forward

    def record(step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        spans.extend((part.start, part.end) for part in step.parts)
        return forward(step, input_ids)

    monkeypatch.setattr(qwen, "forward", record)
    ids = text_ids(150, 66)
    # The whole prompt and the token after it are known the second time.
    for start in (0, 150):
        spans.clear()
        found = world.generate(ids, 12)
        assert found.matched_tokens + found.copied_tokens == start
        assert [begin for begin, _ in spans] == [start, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == 150 + 11
        assert found.computed_tokens == sum(end - begin for begin, end in spans)


def test_a_request_may_leave_the_store_alone(world: EngineWorld, text_ids: Ids) -> None:
    """A request with ``use_store`` off matches and publishes nothing, and gets the same tokens."""
    ids = text_ids(100, 64)
    off = world.generate(ids, use_store=False)
    assert (off.matched_tokens, off.published_pages) == (0, [])
    on = world.generate(ids)
    assert on.matched_tokens == 0
    again = world.generate(ids, use_store=False)
    assert again.matched_tokens == 0
    assert off.output_ids == on.output_ids == again.output_ids


def test_an_exception_keeps_nothing(world: EngineWorld, text_ids: Ids) -> None:
    """An exception of a callback is raised and everything is given back, matched pages too."""

    def fail(pages: list[PageRef]) -> None:
        raise LookupError(len(pages))

    ids = text_ids(100, 65)
    for matched in (0, 4):
        assert world.namespace.peek(ids) == matched * PAGE_TOKENS
        with pytest.raises(LookupError):
            world.generate(ids, on_published=fail)
        assert world.left() == NOTHING
    assert world.generate(ids).matched_tokens == 6 * PAGE_TOKENS
