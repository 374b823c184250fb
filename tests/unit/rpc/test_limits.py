"""Every limit of GetCapabilities: a call at the limit passes, one beyond it is refused.

A new limit of the contract fails here until it has a case in ``limit_cases``.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.core.values.limits import Limits
from kvstore.v1 import named_pin_pb2, prefix_cache_pb2, store_pb2
from stores.limit_cases import CASES, LIMITS
from stores.rpc_world import EPOCH, PAGE_TOKENS, Refused, Server, Worker

pb = prefix_cache_pb2
# Nothing is refused for these: a lease's time to live lies between the first two, whatever it
# asked for, of tombstones the oldest go, what is not announced is computed all the same, and
# what is not prefetched is loaded by its match.
ADVICE = {"min_ttl", "max_ttl", "max_tombstones", "max_announced_bytes", "max_prefetch_bytes"}
both_ways = pytest.mark.parametrize("over", ["grpc", "lane"], indirect=True)


def test_every_limit_has_a_case() -> None:
    """Each limit of the contract has a case here."""
    published = {field.name for field in store_pb2.Limits.DESCRIPTOR.fields}
    assert published == set(CASES) | ADVICE


@both_ways
@pytest.mark.parametrize("name", CASES)
def test_a_limit_holds(start_server: Callable[..., Server], name: str) -> None:
    """A call at the published limit passes, and a call one beyond it is refused by name."""
    case, reason = CASES[name]
    worker = start_server(limits=LIMITS).worker()
    published: Any = worker.ask(
        worker.store.GetCapabilities, store_pb2.GetCapabilitiesRequest()
    ).limits
    most = getattr(published, name)
    if name in {"max_deadline", "max_watch"}:
        most = most.seconds
    assert most == getattr(LIMITS, name)
    case(worker, most)
    with pytest.raises(Refused) as caught:
        case(start_server(limits=LIMITS).worker(), most + 1)
    assert caught.value.reason == reason
    if reason == "LIMIT_EXCEEDED":
        assert caught.value.metadata == {
            "limit": name,
            "maximum": str(most),
            "value": str(most + 1),
        }


@both_ways
@pytest.mark.parametrize(
    "changes",
    [
        {"page_bytes": 2**60},
        {"page_bytes": 2**64 - 1},
        {"page_bytes": 2**60, "paged": {"layer_count": 2**32 - 1, "kv_head_count": 2**32 - 1}},
        {"page_bytes": 0, "paged": {"layer_count": 2**32 - 1, "head_dim": 2**32 - 1}},
        {"page_tokens": 2**32 - 1},
        {"page_tokens": 0},
        {"paged": {"layer_count": 0, "dtype": "float32"}},
        {"tensor_parallel_size": 2**32 - 1},
    ],
    ids=str,
)
def test_a_layout_that_is_refused_leaves_nothing(server: Server, changes: dict[str, Any]) -> None:
    """A refused layout leaves no namespace, arena or extent, however large its numbers."""
    worker = server.worker()
    request = worker.open_request()
    for name, value in changes.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                setattr(request.layout.paged, inner, number)
        else:
            setattr(request.layout, name, value)
    with pytest.raises(Refused) as caught:
        worker.ask(worker.store.OpenNamespace, request)
    assert caught.value.reason in {"INVALID_FIELD", "LIMIT_EXCEEDED", "FEATURE_UNSUPPORTED"}
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    assert (len(stats.namespaces), len(stats.arenas), stats.tenants[0].tier1_bytes) == (0, 0, 0)


@both_ways
def test_numbers_of_pages_beyond_the_longest_sequence_take_nothing(server: Server) -> None:
    """The largest page counts of a message are refused, in one entry and in many."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    huge = 2**32 - 1
    longest = Limits().max_tokens // PAGE_TOKENS
    pages = [(0, huge, 1), (huge, huge, 1), (huge, 1, 1), (0, longest, 1000)]
    reserve, acquire = worker.prefix_cache.ReservePages, worker.prefix_cache.AcquirePrefix
    attempts: list[tuple[Any, Any]] = [
        (
            reserve,
            pb.ReservePagesRequest(
                caller=worker.caller(),
                namespace_id=namespace_id,
                reservations=[
                    pb.ReservationRequest(reservation_id=k + 1, start_page=start, page_count=count)
                    for k in range(entries)
                ],
            ),
        )
        for start, count, entries in pages
    ]
    sequence = pb.Sequence(tokens=bytes(4), position=huge)
    for each in (pb.Sequence(tokens=bytes(4)), sequence):
        request = pb.AcquirePrefixRequest(
            caller=worker.caller(),
            namespace_id=namespace_id,
            sequence=each,
            pin_id=1,
            reservation_id=2,
            total_page_count=huge,
        )
        attempts.append((acquire, request))
    for method, request in attempts:
        with pytest.raises(Refused) as caught:
            worker.ask(method, request)
        assert caught.value.reason in {"LIMIT_EXCEEDED", "POOL_EXHAUSTED"}
    tenant = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest()).tenants[0]
    assert (tenant.pin_count, worker.epoch) == (0, EPOCH)


def calls_with_tokens(worker: Worker, token_bytes: bytes) -> list[tuple[Any, Any]]:
    """Returns a call of each method that takes tokens."""
    caller, namespace_id = worker.caller(), worker.open_namespace()
    reservation = pb.ReservationRequest(reservation_id=9, page_count=1)
    worker.ask(
        worker.prefix_cache.ReservePages,
        pb.ReservePagesRequest(
            caller=caller, namespace_id=namespace_id, reservations=[reservation]
        ),
    )
    sequence = pb.Sequence(tokens=token_bytes)
    named = {"caller": caller, "namespace_id": namespace_id, "sequence": sequence, "pin_id": 1}
    plain = {"namespace_id": namespace_id, "tokens": token_bytes}
    stub = worker.prefix_cache
    return [
        (stub.MatchPrefix, pb.MatchPrefixRequest(**named)),
        (stub.AcquirePrefix, pb.AcquirePrefixRequest(**named, reservation_id=2)),
        (
            stub.InsertPrefix,
            pb.InsertPrefixRequest(caller=caller, reservation_id=9, sequence=sequence),
        ),
        (stub.PeekPrefix, pb.PeekPrefixRequest(**plain)),
        (worker.store.EvictPrefix, store_pb2.EvictPrefixRequest(**plain)),
        (worker.named_pin.PinPrefix, named_pin_pb2.PinPrefixRequest(**plain, name="x")),
    ]


@both_ways
@pytest.mark.parametrize("size", [1, 2, 3, 5, 4 * LIMITS.max_tokens + 4])
def test_tokens_are_checked_whatever_takes_them(
    start_server: Callable[..., Server], size: int
) -> None:
    """Bytes that are no whole token ids, and more of them than a sequence may have, are refused."""
    worker = start_server(limits=LIMITS).worker()
    for method, request in calls_with_tokens(worker, bytes(size)):
        with pytest.raises(Refused) as caught:
            worker.ask(method, request)
        if size % 4:
            assert caught.value.reason == "INVALID_FIELD"
            assert caught.value.metadata["field"] == "tokens"
        else:
            assert caught.value.reason == "LIMIT_EXCEEDED"
            assert caught.value.metadata["limit"] == "max_tokens"
