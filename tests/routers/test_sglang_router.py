"""SGLang's router in front of four ``kvstore-worker serve`` on two stores."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from inference_worker.http.parameters import IGNORED_HEADER
from kvstore_client.testing import wait_until
from support.replay.trace import load
from support.routing.clients import Answered, Asked, ask_all, asked_of, returning
from support.routing.servers import Server, serving
from support.routing.sglang_router import SglangRouter, routing
from support.workloads.trace import turns

pytestmark = [pytest.mark.routers, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "tiny"
LONGEST = 1600
OUTPUT_TOKENS = 6
# A block of 512 tokens of the trace is this many here.
BLOCK_TOKENS = 32
TRACE = Path(__file__).parents[1] / "support" / "traces" / "conversation_cut.jsonl"
CALLERS = 4
# A server ends after the first of so many rounds of all prompts.
ROUNDS = 3
PREFIX = "cache_aware"
# Seconds for an answer, or for the router to notice something.
PATIENCE = 120.0


def ask(url: str, prompts: list[Asked], **options: object) -> list[Answered]:
    """Asks all prompts, several at a time."""
    more = {"output_tokens": OUTPUT_TOKENS, "callers": CALLERS, **options}
    return asyncio.run(ask_all(url, MODEL, prompts, **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives the servers a cache of models of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSTORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@contextmanager
def four_servers() -> Iterator[list[Server]]:
    """Runs two servers on each of two stores."""
    with serving(2, 2, model=MODEL, longest=LONGEST) as running:
        yield running


@pytest.fixture(scope="module")
def servers(cache: None) -> Iterator[list[Server]]:
    """Provides four servers for all tests; the last tests end two of them."""
    del cache
    with four_servers() as running:
        yield running


def router_of(servers: list[Server], policy: str, folder: Path) -> AbstractContextManager[Any]:
    """Runs a router in front of servers."""
    return routing([each.url for each in servers], policy, folder / f"{policy}.log")


@pytest.fixture
def router(servers: list[Server], tmp_path: Path) -> Iterator[SglangRouter]:
    """Provides a router by prefix in front of the servers that are there."""
    with router_of([each for each in servers if each.is_well()], PREFIX, tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def prompts() -> list[Asked]:
    """Returns the prompts of the trace's conversations that come back."""
    longest = LONGEST - OUTPUT_TOKENS - 1
    return asked_of(turns(returning(load(TRACE)), BLOCK_TOKENS, longest), 2 * BLOCK_TOKENS)


@pytest.fixture(scope="module")
def alone(servers: list[Server], prompts: list[Asked]) -> list[Answered]:
    """Returns the answers of one server that neither looks up nor stores anything."""
    found = ask(servers[0].url, prompts, cache=False)
    assert [each.error for each in found] == [""] * len(prompts)
    assert not any(each.cached_tokens for each in found)
    return found


def test_the_router_knows_the_model_by_its_name(router: SglangRouter) -> None:
    """Each server's model is the one that requests name, and its load is known."""
    assert [each["model_id"] for each in router.workers()] == [MODEL] * 4
    with httpx2.Client(base_url=router.url, timeout=PATIENCE) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
        assert client.get("/get_model_info").json()["model_path"] == MODEL
        loads = client.get("/get_loads").json()["workers"]
        assert [each["load"] for each in loads] == [0] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_chats_and_completions_pass_the_router(router: SglangRouter, *, stream: bool) -> None:
    """The parameters that the router adds are accepted, and ours pass with a completion."""
    chat = {"messages": [{"role": "user", "content": "Who is there?"}]}
    completion = {"prompt": "Who is there?"}
    common = {"model": MODEL, "max_tokens": 3, "temperature": 0, "stream": stream}
    with httpx2.Client(base_url=router.url, timeout=PATIENCE) as client:
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
            answer = client.post(path, json={**common, **body})
            assert answer.status_code == 200, answer.text
            assert IGNORED_HEADER not in answer.headers
        ignored = client.post("/v1/completions", json={**common, **completion, "top_kk": 1})
        assert ignored.headers[IGNORED_HEADER] == "top_kk"
        refused = client.post("/v1/completions", json={**common, **completion, "min_p": 0.5})
        assert refused.status_code == 400
        assert "min_p" in refused.text


def test_the_router_drops_the_salt_of_a_chat(router: SglangRouter) -> None:
    """A completion's salt separates it from others; a chat's is lost, as the page says."""
    words = "A sentence that is long enough for several pages of the cache. " * 2
    chat = {"messages": [{"role": "user", "content": words}]}
    cached = {}
    with httpx2.Client(base_url=router.url, timeout=PATIENCE) as client:
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": words})):
            for salt in ("one", "two"):
                options = {"model": MODEL, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
                usage = client.post(path, json={**options, **body}).json()["usage"]
                cached[path, salt] = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached["/v1/completions", "two"] == 0
    assert cached["/v1/chat/completions", "two"] > 0


def test_routing_by_prefix_hits_more_than_round_robin(
    router: SglangRouter, prompts: list[Asked], alone: list[Answered], tmp_path: Path
) -> None:
    """A slice of the public trace hits more if prefixes stay together, with the same tokens."""
    by_prefix = ask(router.url, prompts, callers=1)
    # Fresh stores: it would find what the other way left.
    with four_servers() as others, router_of(others, "round_robin", tmp_path) as turns_taken:
        in_turns = ask(turns_taken.url, prompts, callers=1)
    for found in (by_prefix, in_turns):
        assert [each.error for each in found] == [""] * len(prompts)
        assert [each.text for each in found] == [each.text for each in alone]
    hits = [sum(each.cached_tokens for each in found) for found in (by_prefix, in_turns)]
    # In turns it is 0.20 to 0.36 of all tokens, by the order in which the router found the servers,
    # and one cache for all would have 0.41.
    assert hits[0] > 1.1 * hits[1] > 0, hits


def test_a_server_that_dies_loses_no_request_that_had_not_begun(
    router: SglangRouter, servers: list[Server], prompts: list[Asked], alone: list[Answered]
) -> None:
    """If a server is killed, its requests that had not begun to stream are answered by others."""
    victim, callers = servers[0], 8

    def kill_at(count: int) -> None:
        if count == len(prompts):
            victim.kill()

    found = ask(router.url, prompts * ROUNDS, callers=callers, answered=kill_at)
    assert not victim.is_well()
    lost = [each for each in found if each.error and not each.begun]
    assert lost == [], router.log[-3000:]
    whole = [pair for pair in zip(found, alone * ROUNDS, strict=True) if not pair[0].error]
    assert [each.text for each, _ in whole] == [expected.text for _, expected in whole]
    # Only a request that ran at the moment of the kill can have broken.
    assert len(whole) >= len(found) - callers
    assert wait_until(lambda: len(router.healthy()) == 3, PATIENCE)


def test_a_server_that_drains_loses_no_request(
    router: SglangRouter, servers: list[Server], prompts: list[Asked], alone: list[Answered]
) -> None:
    """If a server gets SIGTERM, its running requests end and all others go elsewhere."""
    victim = servers[-1]
    assert victim.is_well()

    def drain_at(count: int) -> None:
        if count == len(prompts):
            victim.drain()

    found = ask(router.url, prompts * ROUNDS, callers=8, answered=drain_at)
    assert [each.error for each in found] == [""] * len(found), router.log[-3000:]
    assert [each.text for each in found] == [each.text for each in alone * ROUNDS]
    assert not victim.is_well()
