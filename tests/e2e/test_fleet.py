"""Two engine processes with a tiny model on one store: bursts, a full pool, and kill -9."""

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
from transformers import AutoModelForCausalLM

from engines.engine_world import NOTHING, left_at
from inference_worker.demo.comparison import NEAR_TIE
from inference_worker.engine.async_engine import EngineStats
from inference_worker.engine.request import FinishReason, Request
from inference_worker.fleet.fleet import Fleet
from inference_worker.fleet.protocol import EngineSettings, LoadedModel
from inference_worker.model.model import model_folder
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
# More than are given while that is inserted.
STREAMED = 200
# Seeds of prompts: one may be through before it is seen at its half.
TRIES = range(200, 250, 10)
STOPPED = os.WSTOPPED | os.WEXITED | os.WNOWAIT
MakeIds = Callable[[int, int], list[int]]


@dataclass
class Stage:
    """A fleet, its store, and the event loop that runs between a test's steps."""

    fleet: Fleet
    store: RunningStore
    runner: Runner

    def serve(self) -> None:
        """Waits until both processes serve and the store holds nothing for them."""
        self.runner.run(self.fleet.wait_serving(2))
        assert wait_until(lambda: left_at(self.store.runtime_dir) == NOTHING)

    def counts(self) -> EngineStats:
        """Returns the counters of all engines after their last step."""
        return self.runner.run(self.fleet.stats())


@pytest.fixture(scope="module")
def stage(cache: None) -> Iterator[Stage]:
    """Provides one fleet for all tests of this module."""
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
        pids = [each.pid for each in fleet.supervisors]
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        with connect_admin(store.runtime_dir) as admin:
            assert wait_until(lambda: not admin.leases())


@pytest.fixture(scope="module")
def stock(cache: None) -> torch.nn.Module:
    """Provides stock transformers' model."""
    del cache
    found: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        model_folder(MODEL), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    return found


def greedy(stock: torch.nn.Module, prompts: list[list[int]], outputs: list[list[int]]) -> bool:
    """Returns whether the outputs, all of one length, are what the stock model generates.

    Each token is the most likely one after all tokens before it, or within a near tie of that.
    """
    ids = torch.tensor([p + o for p, o in zip(prompts, outputs, strict=True)])
    with torch.inference_mode():
        logits = stock(ids).logits[:, -len(outputs[0]) - 1 : -1].float()
    chosen = logits.gather(-1, torch.tensor(outputs).unsqueeze(-1)).squeeze(-1)
    return bool((logits.amax(-1) - chosen < NEAR_TIE).all())


async def answer(fleet: Fleet, request: Request) -> list[int]:
    """Returns a request's tokens, and fails unless all arrive."""
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
    """Returns the tokens of requests that run at the same time."""
    async with asyncio.timeout(PATIENCE):
        return list(await asyncio.gather(*(answer(fleet, each) for each in requests)))


def test_a_hundred_at_once_on_a_small_pool(
    stage: Stage, stock: torch.nn.Module, text_ids: MakeIds
) -> None:
    """A hundred requests on a small pool give the right tokens, though some are preempted."""
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


def prefilled_prompts(stage: Stage, prompt: list[int], outputs: list[list[int]]) -> float:
    """Asks for one prompt eight times at once. Returns how many prompts that computes."""
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
    """Eight equal prompts on two processes are computed once."""
    stage.serve()
    prompt, outputs = text_ids(LONG_PROMPT, 8), list[list[int]]()
    prompts = prefilled_prompts(stage, prompt, outputs)
    record_property("summary", f"8 equal prompts: {prompts:.3f} prompts computed")
    assert prompts <= 1.05
    assert greedy(stock, [prompt] * BURST, outputs)


@dataclass
class Outlived:
    """The answers to a burst and two streams, and the tokens computed for them."""

    prompt: list[int]
    beginnings: list[list[int]]
    outputs: list[list[int]]
    streamed: list[list[int]]
    computed_tokens: int


def killed_under(stage: Stage, prompt: list[int], beginnings: list[list[int]]) -> Outlived | None:
    """Starts streams and eight equal requests, and kills the process that is half through.

    Returns None if the prompt or the stream was finished before it could be killed.
    """
    fleet = stage.fleet
    with connect_admin(stage.store.runtime_dir) as admin:
        (namespace,) = admin.namespaces()

        def reached() -> int:
            return admin.peek_prefix(namespace.namespace_id, prompt).matched_token_count

        async def prefilled() -> dict[int, int]:
            return {
                each.pid: (await each.client.stats()).prefilled_tokens
                for each in fleet.supervisors
                if each.pid is not None and each.client is not None
            }

        async def kill(before: dict[int, int], streams: list[asyncio.Task[list[int]]]) -> int:
            assert await asyncio.to_thread(wait_until, lambda: reached() >= LONG_PROMPT // 2)
            while True:
                counted = {pid: now - before[pid] for pid, now in (await prefilled()).items()}
                # What it counted stays in the fleet's counts.
                await fleet.stats()
                (pid,) = [pid for pid, tokens in counted.items() if tokens > LONG_PROMPT / 2]
                # Each stream went where there was none.
                broken = streams[[each.pid for each in fleet.supervisors].index(pid)]
                os.kill(pid, signal.SIGSTOP)
                await asyncio.to_thread(os.waitid, os.P_PID, pid, STOPPED)
                inserted = reached()
                if broken.done() or inserted >= LONG_PROMPT // 16 * 16:
                    os.kill(pid, signal.SIGCONT)
                    return 0
                if inserted <= counted[pid]:
                    os.kill(pid, signal.SIGKILL)
                    return pid
                # It went on since it was asked.
                os.kill(pid, signal.SIGCONT)

        async def run() -> Outlived | None:
            streams = [
                asyncio.create_task(answer(fleet, Request(prompt_ids=each, max_tokens=STREAMED)))
                for each in beginnings
            ]
            assert await asyncio.to_thread(wait_until, lambda: len(busy(fleet)) == len(streams))
            counted, before = await fleet.stats(), await prefilled()
            killing = asyncio.create_task(kill(before, streams))
            outputs = await answers(fleet, [Request(prompt_ids=prompt, max_tokens=8)] * BURST)
            killed = await killing
            streamed = list(await asyncio.gather(*streams))
            if not killed:
                return None
            assert killed not in [each.pid for each in fleet.supervisors if each.client is not None]
            computed = (await fleet.stats()).prefilled_tokens - counted.prefilled_tokens
            return Outlived(prompt, beginnings, outputs, streamed, computed)

        return stage.runner.run(run())


def test_a_burst_and_a_stream_outlive_a_process(
    stage: Stage,
    stock: torch.nn.Module,
    text_ids: MakeIds,
    record_property: Callable[[str, object], None],
) -> None:
    """A burst and a stream continue on the other process after one is killed."""
    outlived = None
    for seed in TRIES:
        stage.serve()
        beginnings = [text_ids(20, seed + each) for each in (1, 2)]
        outlived = killed_under(stage, text_ids(LONG_PROMPT, seed), beginnings)
        if outlived is not None:
            break
    assert outlived is not None
    prompts = outlived.computed_tokens / LONG_PROMPT
    record_property("summary", f"8 equal prompts, one killed: {prompts:.3f} prompts computed")
    assert 1 < prompts <= 2.05
    assert greedy(stock, [outlived.prompt] * BURST, outlived.outputs)
    assert greedy(stock, outlived.beginnings, outlived.streamed)


def busy(fleet: Fleet) -> list[int]:
    """Returns the processes that have work."""
    return [
        each.pid
        for each in fleet.supervisors
        if each.client is not None and each.client.outstanding_tokens and each.pid is not None
    ]
