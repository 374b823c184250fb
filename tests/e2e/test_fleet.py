"""Two engine processes with a tiny model on one store: bursts, shortage, and kill -9."""

import asyncio
import os
import signal
from asyncio import Runner
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from engine_world import NOTHING, left_at
from transformers import AutoModelForCausalLM

from inference_worker.comparison import NEAR_TIE
from inference_worker.engine_settings import EngineSettings, LoadedModel
from inference_worker.engine_stats import EngineStats
from inference_worker.fleet import Fleet
from inference_worker.model_source import model_folder
from inference_worker.request import FinishReason, Request
from kvstore_client import connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until

MODEL = "tiny-llama"
PAGE_BYTES = 32 << 10
# Far fewer than 100 requests need, and more than one of the longest.
POOL_PAGES = 192
LONG_PROMPT = 2_000
LONGEST = 2_048
PATIENCE = 120.0
BURST = 8
# A long prompt comes in some pieces, so that it can be half inserted.
STEP = 128
MakeIds = Callable[[int, int], list[int]]


@dataclass
class Stage:
    """A fleet, its store, and the loop that runs between the steps of a test."""

    fleet: Fleet
    store: RunningStore
    runner: Runner

    def serve(self) -> None:
        """Wait until both processes serve, and nothing is held at the store."""
        self.runner.run(self.fleet.wait_serving(2))
        assert wait_until(lambda: left_at(self.store.runtime_dir) == NOTHING)

    def counts(self) -> EngineStats:
        """Return what all engines counted up to their last step."""
        return self.runner.run(self.fleet.stats())


@pytest.fixture(scope="module")
def stage(cache: None) -> Iterator[Stage]:
    """Run one fleet for all tests here."""
    del cache
    budget = str(POOL_PAGES * PAGE_BYTES)
    settings = [
        EngineSettings(
            model=MODEL, name=f"engine {each}", threads=1, longest=LONGEST, max_step_tokens=STEP
        )
        for each in range(2)
    ]
    with running_store("--tier1-bytes", budget, "--extent-bytes", budget) as store:

        async def find_store(loaded: LoadedModel) -> Path:
            assert loaded.page_bytes == PAGE_BYTES
            return store.runtime_dir

        fleet = Fleet(settings, find_store)
        with Runner() as runner:
            runner.run(fleet.start())
            try:
                yield Stage(fleet, store, runner)
            finally:
                runner.run(fleet.close())
        pids = [each.pid for each in fleet.seats]
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        with connect_admin(store.runtime_dir) as admin:
            assert wait_until(lambda: not admin.leases())


@pytest.fixture(scope="module")
def stock(cache: None) -> torch.nn.Module:
    """Return stock transformers' model."""
    del cache
    found: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        model_folder(MODEL), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    return found


def greedy(stock: torch.nn.Module, prompts: list[list[int]], outputs: list[list[int]]) -> bool:
    """Tell whether each output is what the stock model continues its prompt by, of one length.

    Each token is the best after all before it, or within a near tie of that.
    """
    ids = torch.tensor([p + o for p, o in zip(prompts, outputs, strict=True)])
    with torch.inference_mode():
        logits = stock(ids).logits[:, -len(outputs[0]) - 1 : -1].float()
    chosen = logits.gather(-1, torch.tensor(outputs).unsqueeze(-1)).squeeze(-1)
    return bool((logits.amax(-1) - chosen < NEAR_TIE).all())


async def answer(fleet: Fleet, request: Request) -> list[int]:
    """Return a request's tokens, all of which have to come."""
    ids: list[int] = []
    async with aclosing(fleet.generate(request)) as pieces:
        async for piece in pieces:
            ids += piece.token_ids
            if piece.generation is not None:
                assert piece.generation.output_ids == ids
                assert piece.reason is FinishReason.LENGTH
    assert len(ids) == request.max_tokens
    return ids


async def answers(fleet: Fleet, requests: list[Request]) -> list[list[int]]:
    """Return the tokens of requests that are asked at once."""
    async with asyncio.timeout(PATIENCE):
        return list(await asyncio.gather(*(answer(fleet, each) for each in requests)))


def test_a_hundred_at_once_on_a_small_pool(
    stage: Stage, stock: torch.nn.Module, text_ids: MakeIds
) -> None:
    """All finish with stock transformers' tokens though some had to give way; nothing is left."""
    stage.serve()
    groups = [text_ids(16, 100 + each) for each in range(10)]
    prompts = [groups[each % 10] + text_ids(16, each) for each in range(100)]
    # All fit as they begin, and not as they grow.
    asked = [Request(prompt_ids=each, max_tokens=80) for each in prompts]
    before = stage.counts()
    outputs = stage.runner.run(answers(stage.fleet, asked))
    assert greedy(stock, prompts, outputs)
    assert wait_until(lambda: stage.counts().held_sequences == 0)
    after = stage.counts()
    assert after.requests - before.requests == 100
    assert after.preemptions > before.preemptions
    assert (after.running, after.waiting, after.private_slots_used) == (0, 0, 0)
    assert wait_until(lambda: left_at(stage.store.runtime_dir) == NOTHING)


def computing_pid(fleet: Fleet) -> int:
    """Return the process that has something to compute."""
    (pid,) = [
        each.pid
        for each in fleet.seats
        if each.link is not None and each.link.outstanding_tokens and each.pid is not None
    ]
    return pid


def prefilled_prompts(stage: Stage, prompt: list[int], outputs: list[list[int]]) -> float:
    """Ask for one prompt eight times at once; return how many prompts were computed for that."""
    before = stage.counts()
    request = Request(prompt_ids=prompt, max_tokens=8)
    outputs += stage.runner.run(answers(stage.fleet, [request] * BURST))
    after = stage.counts()
    return (after.prefilled_tokens - before.prefilled_tokens) / len(prompt)


def test_a_burst_computes_one_prompt(
    stage: Stage,
    stock: torch.nn.Module,
    text_ids: MakeIds,
    record_property: Callable[[str, object], None],
) -> None:
    """Of eight that ask the same on two processes, one computes and seven wait for it."""
    stage.serve()
    prompt, outputs = text_ids(LONG_PROMPT, 8), list[list[int]]()
    prompts = prefilled_prompts(stage, prompt, outputs)
    record_property("summary", f"8 equal prompts: {prompts:.3f} prompts computed")
    assert prompts <= 1.05
    assert greedy(stock, [prompt] * BURST, outputs)


def test_a_stream_outlives_its_process(
    stage: Stage, stock: torch.nn.Module, text_ids: MakeIds
) -> None:
    """Killed in the middle of a stream, the tokens go on unbroken from the other process."""
    stage.serve()
    prompt = text_ids(100, 7)
    request = Request(prompt_ids=prompt, max_tokens=60)
    killed: list[int] = []

    async def listen() -> list[int]:
        ids: list[int] = []
        async with aclosing(stage.fleet.generate(request)) as pieces:
            async for piece in pieces:
                ids += piece.token_ids
                if len(ids) >= 20 and not killed:
                    killed.append(computing_pid(stage.fleet))
                    os.kill(killed[0], signal.SIGKILL)
        return ids

    output = stage.runner.run(listen())
    assert len(output) == 60
    assert greedy(stock, [prompt], [output])


def test_a_burst_outlives_who_computes_for_it(
    stage: Stage,
    stock: torch.nn.Module,
    text_ids: MakeIds,
    record_property: Callable[[str, object], None],
) -> None:
    """Killed when half of the prompt was inserted, the others take over behind that half."""
    stage.serve()
    prompt, outputs = text_ids(LONG_PROMPT, 9), list[list[int]]()
    with connect_admin(stage.store.runtime_dir) as admin:
        (namespace,) = admin.namespaces()

        def reached(tokens: int) -> bool:
            found = admin.peek_prefix(namespace.namespace_id, prompt)
            return bool(found.matched_token_count >= tokens)

        async def kill() -> None:
            assert await asyncio.to_thread(wait_until, lambda: reached(1))
            # Whoever waits holds nothing.
            links = [(each.pid, each.link) for each in stage.fleet.seats]
            (pid,) = [
                pid for pid, link in links if link and pid and (await link.stats()).held_sequences
            ]
            assert await asyncio.to_thread(wait_until, lambda: reached(LONG_PROMPT // 2))
            # What it counted stays in the fleet's counts.
            await stage.fleet.stats()
            assert not reached(LONG_PROMPT // 16 * 16)
            os.kill(pid, signal.SIGKILL)

        async def burst() -> float:
            before = await stage.fleet.stats()
            killing = asyncio.create_task(kill())
            request = Request(prompt_ids=prompt, max_tokens=8)
            outputs.extend(await answers(stage.fleet, [request] * BURST))
            await killing
            after = await stage.fleet.stats()
            return (after.prefilled_tokens - before.prefilled_tokens) / len(prompt)

        prompts = stage.runner.run(burst())
    record_property("summary", f"8 equal prompts, one killed: {prompts:.3f} prompts computed")
    assert 1 < prompts <= 2.05
    assert greedy(stock, [prompt] * BURST, outputs)
