"""The terms of a load from tier 3 that a match gives, over gRPC and over a lane."""

from typing import Any
from unittest.mock import Mock

import pytest

from kvstore.core import MatchOptions
from kvstore.core.pool.disk_state import DiskState
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.loads.load_call import NO_PART, DiskPart, LoadTerms
from kvstore.v1 import prefix_cache_pb2 as pb
from stores.rpc_world import Server, tokens

PROMPT = tokens(*range(13))
pytestmark = pytest.mark.parametrize("over", ["grpc", "lane"], indirect=True)


def test_what_a_call_says_of_loads_reaches_the_store(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A match passes the engine's prefill speed and the time left of its deadline to the loader."""
    # Without tier 3, or without pages to load, nobody is asked.
    monkeypatch.setattr(server.store._cache.state, "disk", DiskState())
    monkeypatch.setattr(server.store.tier3.loader, "locate", Mock())
    worker = server.worker()
    namespace_id = worker.open_namespace()
    heard: list[tuple[MatchOptions, LoadTerms]] = []

    def listen(*asked: Any) -> DiskPart:  # noqa: ANN401 - whatever it takes
        heard.append(asked[3:5])
        return NO_PART

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
    assert [options.prefill_tokens_per_second for options, _ in heard] == [7, 8]
    now = MONOTONIC()
    assert all(0 < terms.shared - now < terms.own - now < 60 for _, terms in heard)
