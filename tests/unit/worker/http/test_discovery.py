"""The routes by which routers discover a server, its load, and parameters that it ignores."""

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from engines.counting_engine import CountingEngine
from inference_worker.engine.async_engine import EngineStats
from inference_worker.errors import EngineGoneError
from inference_worker.http.api_keys import ApiKeys
from inference_worker.http.app import build_app
from inference_worker.http.discovery import DISCOVERY_PATHS
from inference_worker.http.parameters import IGNORED_HEADER
from inference_worker.http.settings import HttpSettings, served_model
from inference_worker.model.tokenizer import ByteTokenizer
from kvstore import __version__

BODY = {"model": "m", "prompt": "Who is there?", "max_tokens": 3, "temperature": 0}
KEY = "a-key-of-sixteen"


def client_of(engine: CountingEngine, **settings: Any) -> httpx2.AsyncClient:  # noqa: ANN401
    """Returns a client of an application, without a socket."""
    model = served_model("m", ByteTokenizer(), frozenset(), 1000)
    app: Starlette = build_app(engine, model, HttpSettings(**settings))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here")


async def test_a_router_learns_the_model() -> None:
    """Each of SGLang's names for a route has the model's name, by which requests ask for it."""
    async with client_of(CountingEngine()) as client:
        for path in ("/model_info", "/get_model_info"):
            assert (await client.get(path)).json() == {"model_path": "m", "is_generation": True}
        for path in ("/server_info", "/get_server_info"):
            assert (await client.get(path)).json() == {
                "served_model_name": "m",
                "version": __version__,
                "context_length": 1000,
                "dp_size": 1,
            }


async def test_the_routes_need_a_key_if_there_are_keys() -> None:
    """A router without a key learns nothing; each answer is counted by its own route."""
    async with client_of(CountingEngine(), api_keys=ApiKeys({"ann": KEY})) as client:
        for path in DISCOVERY_PATHS:
            assert (await client.get(path)).status_code == 401
            known = await client.get(path, headers={"Authorization": f"Bearer {KEY}"})
            assert known.status_code == 200
        shown = (await client.get("/metrics")).text
    for path in DISCOVERY_PATHS:
        assert f'http_requests_total{{route="{path}",status="200"}} 1.0' in shown


class HeldEngine(CountingEngine):
    """An engine that gives its second tokens once it may."""

    ready = True

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Semaphore(0)
        self.may = asyncio.Event()

    async def generate(self, request: Any) -> Any:  # noqa: ANN401
        """Waits after the first token."""
        async for piece in super().generate(request):
            yield piece
            self.begun.release()
            await self.may.wait()


async def test_the_load_counts_answers_and_their_tokens() -> None:
    """While two answers run, the load has both, their prompts and the tokens so far."""
    engine = HeldEngine()
    async with client_of(engine) as client:
        asked = asyncio.create_task(client.post("/v1/completions", json={**BODY, "n": 2}))
        for _ in range(2):
            await engine.begun.acquire()
        assert (await client.get("/get_load")).json() == [
            {"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 0, "num_tokens": 2 * 13 + 2}
        ]
        assert (await client.get("/load")).json() == {"server_load": 2}
        engine.may.set()
        assert (await asked).status_code == 200
        assert (await client.get("/load")).json() == {"server_load": 0}
        assert (await client.get("/get_load")).json()[0]["num_tokens"] == 0


class GoneEngine(CountingEngine):
    """An engine that ended."""

    async def stats(self) -> EngineStats:
        """Raises, as an engine that ended does."""
        raise EngineGoneError("no engine")


async def test_a_load_that_nobody_knows_is_not_zero() -> None:
    """Without an engine the load is 503, so no router sends its requests there."""
    async with client_of(GoneEngine()) as client:
        assert (await client.get("/get_load")).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ignored_parameter_is_named_and_counted(*, stream: bool) -> None:
    """An answer, whole or streamed, names what was ignored, and the metrics count it."""
    body = {**BODY, "stream": stream, "no_stop_trim": False, "top_kk": 4}
    async with client_of(CountingEngine()) as client:
        answer = await client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.headers[IGNORED_HEADER]) == (200, "top_kk")
        plain = await client.post("/v1/completions", json={**BODY, "stream": stream})
        assert IGNORED_HEADER not in plain.headers
        shown = (await client.get("/metrics")).text
    assert 'ignored_parameters_total{parameter="top_kk"} 1.0' in shown


async def test_a_strict_server_refuses_what_it_does_not_know() -> None:
    """With --strict-parameters an unknown parameter is refused, and a neutral one is not."""
    async with client_of(CountingEngine(), strict_parameters=True) as client:
        refused = await client.post("/v1/completions", json={**BODY, "top_kk": 4})
        assert refused.json()["error"]["code"] == "unknown_parameter"
        accepted = await client.post("/v1/completions", json={**BODY, "no_stop_trim": False})
        assert accepted.status_code == 200
