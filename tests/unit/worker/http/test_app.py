"""The application when its engine is not ready, fails, is full or shuts down, and its limits."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from engines.counting_engine import CountingEngine
from inference_worker.engine.async_engine import Piece
from inference_worker.engine.request import Request
from inference_worker.errors import (
    BadPromptError,
    BadRequestError,
    BadSaltError,
    EngineGoneError,
    WorkerError,
)
from inference_worker.http.app import build_app
from inference_worker.http.settings import HttpSettings, served_model
from inference_worker.model.tokenizer import ByteTokenizer
from kvstore import tracing

LIMIT = 30.0
BODY = {"model": "m", "prompt": "Who is there?", "max_tokens": 3, "temperature": 0}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LONG = {**BODY, "max_tokens": 900}


class FaultyEngine(CountingEngine):
    """An engine that can raise after its second token, or be not ready."""

    ready = True
    fault: Exception | None = None

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Raises after the second token if a fault is set."""
        given = 0
        async for piece in super().generate(request):
            yield piece
            given += 1
            if self.fault is not None and given == 2:
                raise self.fault


def app_of(engine: CountingEngine, **settings: Any) -> Starlette:  # noqa: ANN401
    """Serves an engine."""
    model = served_model("m", ByteTokenizer(), frozenset(), 1000)
    return build_app(engine, model, HttpSettings(**settings))


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx2.AsyncClient]:
    """Provides a client of an application, without a socket."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def events(text: str) -> list[Any]:
    """Returns a stream's JSON documents, and its end as text."""
    datas = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [each if each == "[DONE]" else json.loads(each) for each in datas]


class RecordingEngine(CountingEngine):
    """An engine that records its requests."""

    ready = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Records the request."""
        self.asked.append(request)
        async for piece in super().generate(request):
            yield piece


@pytest.mark.parametrize("on", [False, True])
async def test_a_client_s_trace_goes_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, *, on: bool
) -> None:
    """Each choice carries the client's trace to the engine if tracing is on."""
    monkeypatch.setattr(tracing, "ON", on)
    engine = RecordingEngine()

    async with client_of(app_of(engine)) as client:
        for headers in ({"traceparent": PARENT}, {}):
            answer = await client.post("/v1/completions", json={**BODY, "n": 2}, headers=headers)
            assert answer.status_code == 200
    named = [PARENT, PARENT] if on else ["", ""]
    assert [each.traceparent for each in engine.asked] == [*named, "", ""]


@pytest.mark.parametrize(
    "fault", [RuntimeError("secret"), ValueError("secret"), WorkerError("secret")]
)
async def test_what_nobody_foresaw_says_nothing_of_itself(fault: Exception) -> None:
    """An unexpected error is status 500 or a stream's last event, counted and without its text."""
    engine = FaultyEngine()
    engine.fault = fault

    async with client_of(app_of(engine)) as client:
        whole = await client.post("/v1/completions", json=BODY)
        assert whole.status_code == 500
        assert whole.json()["error"]["code"] == "internal_error"
        stream = await client.post("/v1/completions", json={**BODY, "stream": True})
        found = events(stream.text)
        assert found[-1]["error"]["code"] == "internal_error"
        assert "secret" not in whole.text + stream.text
        shown = (await client.get("/metrics")).text
        assert 'http_requests_total{route="/v1/completions",status="500"} 1.0' in shown
        assert "request_failure_total 2.0" in shown
        assert "request_success_total{" not in shown
    assert engine.running == 0


@pytest.mark.parametrize("fault", [BadPromptError("its ids"), BadSaltError("its salt")])
async def test_what_an_engine_refuses_is_the_clients(fault: BadRequestError) -> None:
    """A refusal of the engine gives status 400, with its message and the field."""
    engine = FaultyEngine()
    engine.fault = fault

    async with client_of(app_of(engine)) as client:
        answer = await client.post("/v1/completions", json=BODY)
        error = answer.json()["error"]
        told = answer.status_code, error["code"], error["param"], error["message"]
        assert told == (400, "invalid_value", fault.param, str(fault))
        shown = (await client.get("/metrics")).text
        assert "request_failure_total 0.0" in shown
        assert "request_success_total{" not in shown


async def test_an_engine_that_is_gone_is_503() -> None:
    """An engine that is gone or not ready gives status 503. /health does so if it is not ready."""
    engine = FaultyEngine()
    engine.fault = EngineGoneError("it ended")

    async with client_of(app_of(engine)) as client:
        gone = await client.post("/v1/completions", json=BODY)
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "not_ready")
        assert gone.headers["retry-after"]
        assert (await client.get("/health")).status_code == 200
        engine.ready = False
        for answer in (
            await client.get("/health"),
            await client.post("/v1/completions", json=BODY),
        ):
            assert answer.status_code == 503


async def test_an_end_lets_what_runs_finish() -> None:
    """A shutdown refuses new requests, and ends as soon as none runs."""
    engine = CountingEngine()
    app = app_of(engine)

    async with client_of(app) as client:
        body = {**BODY, "max_tokens": 40, "stream": True}
        running = asyncio.create_task(client.post("/v1/completions", json=body))
        while not engine.running:  # noqa: ASYNC110 - a task of the application
            await asyncio.sleep(0)
        ending = asyncio.create_task(app.state.drain.drain(LIMIT))
        await asyncio.sleep(0)
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        found = events((await running).text)
        assert found[-1] == "[DONE]"
        assert found[-2]["choices"][0]["finish_reason"] == "length"
        await ending


async def test_an_end_without_grace_ends_what_runs() -> None:
    """A shutdown without grace informs all clients, with and without a stream."""
    engine = CountingEngine()
    app = app_of(engine)

    async with client_of(app) as client:
        stream = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": True}))
        whole = asyncio.create_task(client.post("/v1/completions", json=LONG))
        while engine.running < 2:  # noqa: ASYNC110 - tasks of the application
            await asyncio.sleep(0)
        await app.state.drain.drain(0)
        assert engine.running == 0
        assert (await whole).status_code == 503
        last = events((await stream).text)[-1]
        assert last["error"]["code"] == "not_ready"


async def test_a_body_is_bounded() -> None:
    """A body is bounded by its stated length, by its bytes as they arrive, and in time."""

    async def slowly(pieces: int, seconds: float) -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b" " * 40
            await asyncio.sleep(seconds)

    async with client_of(app_of(CountingEngine(), max_body_bytes=100)) as client:
        told = await client.post("/v1/completions", content=b" " * 101)
        untold = await client.post("/v1/completions", content=slowly(1000, 0))
        assert [each.status_code for each in (told, untold)] == [413, 413]

    async with client_of(app_of(CountingEngine(), max_body_bytes=100, body_seconds=0.05)) as client:
        found = await client.post("/v1/completions", content=slowly(2, LIMIT))
        assert found.status_code == 408


async def test_several_answers_are_bounded_and_in_order() -> None:
    """Answers are prompts times n, each with its index. Usage counts each prompt once."""
    async with client_of(app_of(CountingEngine())) as client:
        body = {**BODY, "prompt": ["one", "two"], "n": 2}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3]
        texts = [each["text"] for each in answer["choices"]]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        assert answer["usage"] == {
            "prompt_tokens": 6,
            "completion_tokens": 12,
            "total_tokens": 18,
            "prompt_tokens_details": {
                "cached_tokens": 2,
                "cached_tokens_by_tier": {"memory": 2, "disk": 0, "remote": 0},
            },
        }
        refused = await client.post("/v1/completions", json={**body, "n": 9})
        assert refused.json()["error"]["param"] == "n"


def test_it_needs_no_torch() -> None:
    """A server for engines in other processes does not load torch."""
    code = "import sys, inference_worker.http.server, inference_worker.http.app as a; "
    code += "assert a and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
