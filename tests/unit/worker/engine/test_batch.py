"""Requests that run together give what each gives alone, and end independently."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from engines.engine_world import CHUNK_TOKENS, NOTHING, EngineWorld
from engines.heard import Heard
from inference_worker.attention.step import Step
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.request import GREEDY, FinishReason, Request, SamplingOptions
from inference_worker.model.model import PagedModel
from inference_worker.model.tiny import TINY_MODELS
from inference_worker.pages import acquisition as page_growth
from inference_worker.pages.acquisition import RESERVE_AHEAD
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import Reservation
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.testing import RunningStore

Ids = Callable[[int, int], list[int]]


pytestmark = pytest.mark.store("--tier1-bytes", "32MiB")


@pytest.fixture
def world(store: RunningStore, qwen: PagedModel) -> Iterator[EngineWorld]:
    """Returns an engine on the store. At the end nothing may be held."""
    with EngineWorld(qwen, store.runtime_dir) as w:
        w.wait_open()
        yield w
        assert w.engine.stats.held_sequences == w.engine.private_slots_used == 0
        assert w.left() == NOTHING


def run_all(engine: Engine, *heard: Heard) -> None:
    """Steps until nothing is left."""
    while engine.has_work:
        engine.step()
    assert all(each.ended for each in heard)


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_a_batch_gives_what_each_gives_alone(
    paged_models: dict[str, PagedModel], text_ids: Ids, name: str
) -> None:
    """Prompts of many lengths, prefilled in chunks beside decodes, give their own tokens."""
    engine = Engine(paged_models[name], None, longest=200, max_step_tokens=48, private_tokens=2000)
    prompts = [text_ids(length, 90 + length) for length in (1, 100, 17, 64)]
    heard = [Heard() for _ in prompts]
    for ids, listener in zip(prompts, heard, strict=True):
        engine.add(Request(prompt_ids=ids, max_tokens=8), listener)
    run_all(engine, *heard)
    alone = [engine.generate(ids, 8).output_ids for ids in prompts]
    assert [each.tokens for each in heard] == alone
    assert [each.reason for each in heard] == [FinishReason.LENGTH] * len(prompts)
    assert engine.private_slots_used == 0


def test_a_step_takes_decodes_first_and_prompts_within_its_tokens(
    qwen: PagedModel, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt delays no decode, because each step gives every decode a token."""
    counts: list[list[int]] = []
    forward = qwen.forward

    def record(step: Step, input_ids: object) -> object:
        counts.append([part.count for part in step.parts])
        return forward(step, input_ids)  # type: ignore[arg-type]

    monkeypatch.setattr(qwen, "forward", record)
    engine = Engine(qwen, None, longest=200, max_step_tokens=50, private_tokens=600)
    engine.add(Request(prompt_ids=text_ids(10, 1), max_tokens=6), Heard())
    engine.step()
    engine.add(Request(prompt_ids=text_ids(120, 2), max_tokens=2), Heard())
    run_all(engine)
    assert counts == [[10], [1, 49], [1, 49], [1, 22], [1, 1], [1]]


def test_a_step_publishes_all_its_sequences_in_one_call(
    world: EngineWorld, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests whose pages fill up in the same step are published by one call to the store."""
    sent: list[list[str]] = []
    run_step = LeaseCalls.run_step

    def count(
        self: LeaseCalls, request: pb.RunStepRequest, timeout: float
    ) -> Sequence[pb.StepResult]:
        sent.append([str(each.WhichOneof("operation")) for each in request.operations])
        return run_step(self, request, timeout)

    monkeypatch.setattr(LeaseCalls, "run_step", count)
    prompts = [text_ids(2 * PAGE_TOKENS, 400 + number) for number in range(2)]
    heard = [Heard() for _ in prompts]
    for ids, each in zip(prompts, heard, strict=True):
        world.engine.add(Request(prompt_ids=ids, max_tokens=3), each)
    world.engine.step()
    assert sent == [["insert"] * 2]
    assert [world.namespace.peek(ids) for ids in prompts] == [2 * PAGE_TOKENS - 1] * 2
    run_all(world.engine, *heard)
    assert all(each.generation is not None for each in heard)
    assert [len(each.generation.published_pages) for each in heard if each.generation] == [3] * 2


def test_an_abort_ends_one_request_wherever_it_is(world: EngineWorld, text_ids: Ids) -> None:
    """An abort ends one request, waiting or running, and others continue."""
    engine = world.engine
    waiting, halfway, decoding, itself, other = (Heard() for _ in range(5))
    numbers = {}
    numbers[decoding] = engine.add(Request(prompt_ids=text_ids(20, 3), max_tokens=50), decoding)
    engine.step()
    numbers[halfway] = engine.add(
        Request(prompt_ids=text_ids(CHUNK_TOKENS * 3, 4), max_tokens=5), halfway
    )
    engine.step()
    numbers[waiting] = engine.add(Request(prompt_ids=text_ids(30, 5), max_tokens=5), waiting)
    for each in (waiting, halfway, decoding):
        engine.abort(numbers[each])
        assert each.reason is FinishReason.ABORT
    assert (len(waiting.tokens), len(halfway.tokens)) == (0, 0)
    assert len(decoding.tokens) == 2
    assert engine.stats.held_sequences == 0
    assert world.left() == NOTHING
    # The computed pages stay in the store, including the partial one.
    assert world.namespace.peek(text_ids(CHUNK_TOKENS * 3, 4)) >= CHUNK_TOKENS - 2
    number = engine.add(Request(prompt_ids=text_ids(40, 6), max_tokens=9), itself)
    itself.act = lambda: engine.abort(number) if len(itself.tokens) == 3 else None
    engine.add(Request(prompt_ids=text_ids(41, 7), max_tokens=9), other)
    run_all(engine, itself, other)
    assert (itself.reason, len(itself.tokens)) == (FinishReason.ABORT, 3)
    assert other.tokens == engine.generate(text_ids(41, 7), 9, use_store=False).output_ids
    engine.abort(number)


def test_nobody_hears_a_token_after_its_abort(world: EngineWorld, text_ids: Ids) -> None:
    """An aborted request hears no more tokens, even if its abort comes in the same step."""
    engine = world.engine
    ids = text_ids(2 * PAGE_TOKENS, 10)
    engine.generate(ids, 1)
    first, second = Heard(), Heard()
    engine.add(Request(prompt_ids=ids, max_tokens=3), first)
    number = engine.add(Request(prompt_ids=ids, max_tokens=3), second)
    first.act = lambda: engine.abort(number)
    engine.step()
    assert (second.tokens, second.reason) == ([], FinishReason.ABORT)
    assert first.tokens
    run_all(engine, first)


def test_a_failure_is_its_own_requests(world: EngineWorld, text_ids: Ids) -> None:
    """An exception of a listener fails its request alone, and the other request ends normally."""
    engine = world.engine
    bad, good = Heard(), Heard()
    bad.act = lambda: 1 // 0
    engine.add(Request(prompt_ids=text_ids(20, 8), max_tokens=9), bad)
    engine.add(Request(prompt_ids=text_ids(21, 9), max_tokens=9), good)
    run_all(engine, bad, good)
    assert isinstance(bad.error, ZeroDivisionError)
    assert good.reason is FinishReason.LENGTH


def test_a_forward_that_fails_fails_what_was_in_it(
    world: EngineWorld, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed forward gives everything back, and the engine continues with the next request."""
    engine = world.engine
    within, after = [Heard(), Heard()], Heard()
    for seed, each in enumerate(within):
        engine.add(Request(prompt_ids=text_ids(20, seed), max_tokens=9), each)
    with monkeypatch.context() as patch:
        patch.setattr(engine._model, "forward", lambda *_: 1 // 0)
        assert engine.step()
    assert [type(each.error) for each in within] == [ZeroDivisionError] * 2
    assert world.left() == NOTHING
    engine.add(Request(prompt_ids=text_ids(20, 0), max_tokens=9), after)
    run_all(engine, after)
    assert after.reason is FinishReason.LENGTH


def test_a_draw_that_fails_fails_its_request_alone(
    world: EngineWorld, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request fails if its row is NaN, and requests beside it get their tokens."""
    engine = world.engine
    drawn = SamplingOptions(temperature=1.0, seed=1)
    heard = [Heard() for _ in range(3)]
    forward = engine._model.forward

    def spoil(step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        logits = forward(step, input_ids).clone()
        logits[0] = torch.nan
        return logits

    for seed, (sampling, each) in enumerate(zip((drawn, drawn, GREEDY), heard, strict=True)):
        ids = text_ids(5, 40 + seed)
        engine.add(Request(prompt_ids=ids, max_tokens=3, sampling=sampling), each)
    with monkeypatch.context() as patch:
        patch.setattr(engine._model, "forward", spoil)
        engine.step()
    run_all(engine, *heard)
    assert "probability" in str(heard[0].error)
    assert [each.reason for each in heard[1:]] == [FinishReason.LENGTH] * 2


def test_a_step_asks_for_slots_once(
    world: EngineWorld, text_ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call asks for the slots of all decodes, for several pages ahead."""
    calls: list[int] = []
    grow = page_growth.grow_reservations

    def count(wanted: Sequence[tuple[Reservation, int]]) -> None:
        calls.append(len(wanted))
        grow(wanted)

    monkeypatch.setattr(page_growth, "grow_reservations", count)
    engine, number, steps = world.engine, 5, 150
    heard = [Heard() for _ in range(number)]
    for seed, each in enumerate(heard):
        engine.add(Request(prompt_ids=text_ids(3 + 5 * seed, 20 + seed), max_tokens=steps), each)
    run_all(engine, *heard)
    assert engine.private_slots_used == 0
    # Each call is for all requests, and lasts for all pages that are reserved ahead.
    assert calls[0] == number
    assert len(calls) <= -(-steps // (RESERVE_AHEAD * PAGE_TOKENS)) + 1


def test_requests_beyond_the_private_room_wait(qwen: PagedModel, text_ids: Ids) -> None:
    """Without a store the youngest request gives way when room ends, and loses no token."""
    engine = Engine(qwen, None, longest=6 * PAGE_TOKENS)
    heard = [Heard() for _ in range(3)]
    for seed, each in enumerate(heard):
        engine.add(Request(prompt_ids=text_ids(20, seed), max_tokens=40), each)
    run_all(engine, *heard)
    assert engine.stats.preemptions > 0
    for seed, each in enumerate(heard):
        assert each.tokens == engine.generate(text_ids(20, seed), 40).output_ids
    assert engine.private_slots_used == 0
