"""The terms of a load from tier 3 that a match gives, over gRPC and over a lane."""

from typing import Any

import pytest

from kvstore.core.pool.disk_state import DiskState
from kvstore.service.page_io.disk_reader import LoadTerms
from kvstore.v1 import prefix_cache_pb2 as pb
from stores.rpc_world import Server, tokens

PROMPT = tokens(*range(13))


@pytest.fixture(params=["grpc", "lane"])
def over(request: pytest.FixtureRequest) -> str:
    """Provides both ways to make these calls."""
    return str(request.param)


def test_what_a_call_says_of_loads_reaches_the_store(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A match passes the engine's prefill speed and the time left of its deadline to the loader."""
    # Without tier 3 nobody is asked.
    monkeypatch.setattr(server.store._cache.state, "disk", DiskState())
    worker = server.worker()
    namespace_id = worker.open_namespace()
    heard: list[LoadTerms] = []
    load = server.store.tier3.loader.load

    def listen(*asked: Any) -> int:  # noqa: ANN401 - whatever it takes
        heard.append(asked[-1])
        return load(*asked)

    monkeypatch.setattr(server.store.tier3.loader, "load", listen)
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        sequence=pb.Sequence(tokens=PROMPT),
        pin_id=1,
        prefill_tokens_per_second=7,
    )
    worker.ask(worker.prefix_cache.MatchPrefix, request)
    worker.acquire(namespace_id, PROMPT, pin_id=3, prefill_tokens_per_second=8)
    assert [each.prefill_tokens_per_second for each in heard] == [7, 8]
    assert all(0 < each.seconds < 60 for each in heard)
