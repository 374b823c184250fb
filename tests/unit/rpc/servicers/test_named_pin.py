"""NamedPinService over a real server."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.v1 import named_pin_pb2 as pb
from kvstore.v1 import store_pb2
from stores.rpc_world import ADMIN_UID, Refused, Server, Worker, tokens

TWO_PAGES = tokens(*range(8))
THREE_PAGES = tokens(*range(12))


def cached(server: Server) -> tuple[Worker, bytes]:
    """Returns a worker and a namespace in which two pages are cached."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, TWO_PAGES, 1)
    return worker, namespace_id


def pin(worker: Worker, namespace_id: bytes, name: str, **fields: Any) -> int:  # noqa: ANN401  # a message's
    """Pins two pages by default. Returns the number of pinned tokens."""
    request = pb.PinPrefixRequest(namespace_id=namespace_id, name=name, tokens=TWO_PAGES)
    request.MergeFrom(pb.PinPrefixRequest(**fields))
    answer = worker.ask(worker.named_pin.PinPrefix, request)
    count: int = answer.pinned_token_count
    return count


def pins(worker: Worker, **fields: Any) -> list[pb.NamedPinInfo]:  # noqa: ANN401  # a message's
    """Returns the first page of the list of pins."""
    answer = worker.ask(worker.named_pin.ListPins, pb.ListPinsRequest(**fields))
    return list(answer.pins)


def test_a_prefix_is_pinned_listed_and_unpinned(server: Server) -> None:
    """The cached part of a prefix is pinned, and is listed with its times until it is unpinned."""
    worker, namespace_id = cached(server)
    assert pin(worker, namespace_id, "p", tokens=THREE_PAGES, ttl=Duration(seconds=500)) == 8
    assert pin(worker, namespace_id, "q") == 8
    first, second = pins(worker)
    assert (first.namespace_id, first.name, first.pinned_token_count) == (namespace_id, "p", 8)
    assert 0 < first.remaining.ToNanoseconds() <= 500e9
    assert first.age.ToNanoseconds() >= second.age.ToNanoseconds()
    assert not second.HasField("remaining")
    request = pb.UnpinPrefixRequest(namespace_id=namespace_id, name="p")
    for _ in range(2):
        worker.ask(worker.named_pin.UnpinPrefix, request)
    assert [each.name for each in pins(worker)] == ["q"]


def test_nothing_cached_is_no_pin(server: Server) -> None:
    """Pinning an uncached prefix answers zero tokens, or fails if all tokens are required."""
    worker, namespace_id = cached(server)
    request = pb.PinPrefixRequest(namespace_id=namespace_id, name="p", tokens=tokens(*range(7, 15)))
    assert worker.ask(worker.named_pin.PinPrefix, request).pinned_token_count == 0
    assert pins(worker) == []
    request.require_all = True
    with pytest.raises(Refused) as caught:
        worker.ask(worker.named_pin.PinPrefix, request)
    assert (caught.value.code.name, caught.value.reason) == (
        "FAILED_PRECONDITION",
        "PREFIX_NOT_CACHED",
    )
    assert caught.value.metadata == {"cached": "0", "requested": "8"}


def test_a_name_of_another_prefix_is_refused(server: Server) -> None:
    """Pinning the same prefix again succeeds. Other tokens under the same name are refused."""
    worker, namespace_id = cached(server)
    assert pin(worker, namespace_id, "p") == pin(worker, namespace_id, "p") == 8
    with pytest.raises(Refused) as caught:
        pin(worker, namespace_id, "p", tokens=THREE_PAGES)
    assert (caught.value.code.name, caught.value.reason) == ("ALREADY_EXISTS", "ID_REUSED")
    assert caught.value.metadata == {"name": "p"}


def test_a_removal_ends_the_pin(server: Server) -> None:
    """Evicting a pinned prefix removes its named pin."""
    worker, namespace_id = cached(server)
    pin(worker, namespace_id, "p")
    request = store_pb2.EvictPrefixRequest(namespace_id=namespace_id, tokens=TWO_PAGES)
    worker.ask(worker.store.EvictPrefix, request)
    assert pins(worker) == []


def test_pins_are_counted_and_bounded(start_server: Callable[..., Server]) -> None:
    """Statistics count named pins, and one more than the quota is refused."""
    worker, namespace_id = cached(start_server(quotas=QuotaTable(Quotas(named_pins=1))))
    pin(worker, namespace_id, "p")
    with pytest.raises(Refused) as caught:
        pin(worker, namespace_id, "q")
    assert caught.value.reason == "QUOTA_EXCEEDED"
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    assert (stats.named_pin_count, stats.namespaces[0].named_pin_count) == (1, 1)


@pytest.mark.parametrize("scope", ["all", "one"])
def test_pins_are_listed_in_pages(server: Server, scope: str) -> None:
    """A list continues at the next page even if the entry before it was removed."""
    worker, namespace_id = cached(server)
    for name in "cab":
        pin(worker, namespace_id, name)
    request = pb.ListPinsRequest(page_size=1)
    if scope == "one":
        request.namespace_id = namespace_id
    found = []
    while True:
        answer = worker.ask(worker.named_pin.ListPins, request)
        found += [each.name for each in answer.pins]
        worker.ask(
            worker.named_pin.UnpinPrefix,
            pb.UnpinPrefixRequest(namespace_id=namespace_id, name=found[-1]),
        )
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    assert found == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("method", "field", "changes"),
    [
        ("PinPrefix", "namespace_id", {"namespace_id": b"x"}),
        ("PinPrefix", "name", {"name": ""}),
        ("PinPrefix", "name", {"name": "x" * 257}),
        ("PinPrefix", "tokens", {"tokens": b"123"}),
        ("PinPrefix", "ttl", {"ttl": Duration()}),
        ("PinPrefix", "ttl", {"ttl": Duration(seconds=-1)}),
        ("PinPrefix", "ttl", {"ttl": Duration(seconds=(1 << 63) - 1)}),
        ("UnpinPrefix", "namespace_id", {"namespace_id": b""}),
        ("UnpinPrefix", "name", {"name": ""}),
        ("ListPins", "namespace_id", {"namespace_id": b"x"}),
        ("ListPins", "page_size", {"page_size": -1}),
        ("ListPins", "page_token", {"page_token": "x"}),
    ],
)
def test_bad_fields_are_refused(
    server: Server, method: str, field: str, changes: dict[str, Any]
) -> None:
    """A bad field is refused by its name, and no pin is made."""
    worker, namespace_id = cached(server)
    good = {"namespace_id": namespace_id, "name": "p", "tokens": TWO_PAGES}
    kind = getattr(pb, f"{method}Request")
    chosen = {key: value for key, value in good.items() if key in kind.DESCRIPTOR.fields_by_name}
    with pytest.raises(Refused) as caught:
        worker.ask(getattr(worker.named_pin, method), kind(**chosen | changes))
    assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_FIELD", field)
    assert pins(worker) == []


def test_another_tenant_s_namespace_is_not_there(server: Server) -> None:
    """A stranger cannot pin, unpin or list in another tenant's namespace. An admin can."""
    worker, namespace_id = cached(server)
    stranger, admin = server.worker(uid=3), server.worker(uid=ADMIN_UID)
    assert pin(admin, namespace_id, "p") == 8
    assert pins(stranger) == []
    for method, request in (
        ("PinPrefix", pb.PinPrefixRequest(namespace_id=namespace_id, name="p", tokens=TWO_PAGES)),
        ("UnpinPrefix", pb.UnpinPrefixRequest(namespace_id=namespace_id, name="p")),
        ("ListPins", pb.ListPinsRequest(namespace_id=namespace_id)),
    ):
        with pytest.raises(Refused) as caught:
            stranger.ask(getattr(stranger.named_pin, method), request)
        assert caught.value.reason == "NAMESPACE_NOT_FOUND"
    assert [each.name for each in pins(worker)] == [each.name for each in pins(admin)] == ["p"]
