"""An acquire that yields, over a real server."""

import pytest

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import store_pb2
from stores.rpc_world import PAGE_TOKENS, Server, Worker, tokens

# Three pages, and one token to run.
PROMPT = tokens(*range(13))


@pytest.fixture(params=["grpc", "lane"])
def over(request: pytest.FixtureRequest) -> str:
    """Provides both ways to make these calls."""
    return str(request.param)


def test_of_two_acquires_of_one_prompt_one_yields(server: Server) -> None:
    """The second acquire of a prompt learns of the first one's prefill and holds nothing."""
    writer, waiter = server.worker(), server.worker()
    namespace_id = writer.open_namespace()
    waiter.open_namespace()

    def acquire(worker: Worker) -> pb.AcquirePrefixResponse:
        return worker.acquire(namespace_id, PROMPT, yield_to_in_flight=True)

    assert acquire(writer).HasField("grant")
    yielded = acquire(waiter)
    assert not yielded.HasField("grant")
    assert yielded.match.in_flight.token_count == 3 * PAGE_TOKENS
    peek = pb.PeekPrefixRequest(namespace_id=namespace_id, tokens=PROMPT)
    peeked = waiter.ask(waiter.prefix_cache.PeekPrefix, peek)
    assert peeked.in_flight.token_count == 3 * PAGE_TOKENS
    stats = writer.ask(writer.store.GetStats, store_pb2.GetStatsRequest())
    assert (stats.in_flight_count, stats.counters.yielded_count) == (1, 1)
    assert [(each.pin_count, each.reservation_count) for each in stats.leases] == [(0, 1), (0, 0)]
