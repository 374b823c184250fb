"""The clients of benchmarks/multiturn.py against the HTTP application, in this process."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from multiturn import figures
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from inference_worker.engine.local_worker import local_worker
from inference_worker.fleet.engine_thread import EngineThread
from inference_worker.http.app import build_app
from inference_worker.http.settings import served_model
from inference_worker.model.device import use_threads
from kvstore_client.testing import running_store
from support.replay.trace import load
from support.workloads.clients import Served, replay
from support.workloads.trace import Turn, turns

CUT = Path(__file__).parents[1] / "data" / "conversation_300.jsonl.gz"
LONGEST = 200
ATTACH_SECONDS = 60.0


@pytest.fixture(scope="module")
def asked() -> list[Turn]:
    """Provides some turns of the trace with equal beginnings."""
    found = turns(load(CUT, 60), block_tokens=8, longest=LONGEST - 2)[:10]
    assert sum(each.known_tokens for each in found) > 0
    return found


def serve(asked: list[Turn], *, callers: int, speed: float = 0.0) -> list[Served]:
    """Replays turns against an application with its own engine and store."""
    use_threads(1)

    async def talk() -> list[Served]:
        engine = EngineThread(worker.engine)
        model = served_model("tiny", worker.model.tokenizer, worker.model.end_ids, LONGEST)
        transport = httpx2.ASGITransport(app=build_app(engine, model))
        http = DefaultAsyncHttpxClient(transport=transport)
        try:
            async with AsyncOpenAI(
                base_url="http://server/v1", api_key="none", http_client=http
            ) as client:
                return await replay(
                    client, "tiny", asked, output_tokens=2, callers=callers, speed=speed
                )
        finally:
            await engine.close()

    with (
        running_store("--tier1-bytes", "16MiB") as store,
        local_worker(
            "tiny",
            runtime_dir=store.runtime_dir,
            longest=LONGEST,
            attach_seconds=ATTACH_SECONDS,
        ) as worker,
    ):
        return asyncio.run(talk())


def test_one_caller_finds_all_that_was_computed_before(asked: list[Turn]) -> None:
    """One caller finds the tokens that the trace predicts, or some more where two prompts agree."""
    served = serve(asked, callers=1)
    for turn, each in zip(asked, served, strict=True):
        assert each.error == ""
        assert (each.prompt_tokens, each.output_tokens) == (len(turn.ids), 2)
        assert min(turn.known_tokens, len(turn.ids) - 1) <= each.cached_tokens <= len(turn.ids)
        assert 0 < each.first_token_s <= each.whole_s
    found = figures(asked, served)
    assert found["cached_share"] >= found["ideal_share"] - 0.02


def test_an_open_loop_sends_everything_in_time(asked: list[Turn]) -> None:
    """An open loop sends several requests at a time, and none before its time."""
    served = serve(asked, callers=4, speed=1_000.0)
    assert [each.error for each in served] == [""] * len(asked)
    assert {each.output_tokens for each in served} == {2}
    assert min(each.late_s for each in served) >= 0
