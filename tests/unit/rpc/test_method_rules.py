"""The rules of methods: the sizes of requests, and what a request has to have."""

from collections.abc import Callable

import pytest

from kvstore.core.values.limits import Limits
from kvstore.errors import InvalidField
from kvstore.rpc.pipeline import (
    GIVING_BACK,
    REQUIRED,
    Method,
    method_of,
    require_fields,
    size_limit_of,
)
from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2
from stores.rpc_world import Refused, Server

METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
WITH_TOKENS = {
    "AcquirePrefix",
    "EvictPrefix",
    "InsertPrefix",
    "MatchPrefix",
    "PeekPrefix",
    "PinPrefix",
    "PrefetchPrefix",
    "RunStep",
}


def test_requests_with_tokens_may_be_long() -> None:
    """Only requests that carry tokens, directly or in a part, have the large size limit."""
    found = {each for each in METHODS if size_limit_of(each) == "max_message_bytes"}
    assert {each.rpartition("/")[2] for each in found} == WITH_TOKENS


def test_a_request_over_its_limit_is_named(start_server: Callable[..., Server]) -> None:
    """The limit, what it is and what came; a request at the limit passes."""
    worker = start_server(limits=Limits(max_short_message_bytes=100)).worker()
    request = lease_pb2.ListLeasesRequest(page_token="x" * 98)
    assert request.ByteSize() == 100
    for token, wanted in (("x" * 98, "INVALID_FIELD"), ("x" * 99, "LIMIT_EXCEEDED")):
        with pytest.raises(Refused) as error:
            worker.ask(worker.lease.ListLeases, lease_pb2.ListLeasesRequest(page_token=token))
        assert error.value.reason == wanted
    named = {"limit": "max_short_message_bytes", "maximum": "100", "value": "101"}
    assert error.value.metadata == named


def test_what_gives_back_is_in_the_contract() -> None:
    """The calls that no rate limit refuses exist in the contract, and none carries tokens."""
    assert set(METHODS) >= GIVING_BACK
    assert not {each for each in GIVING_BACK if each.rpartition("/")[2] in WITH_TOKENS}


def rules(path: str) -> Method:
    """Returns a method by its path, or the end of it."""
    [found] = [each for each in METHODS if each.endswith(path)]
    return method_of(found, lambda *_: store_pb2.GetStatsResponse(), Limits())


def test_a_message_in_a_request_is_required_or_optional() -> None:
    """Requests need the messages of REQUIRED. All others are a time, a hint, or a list."""
    parts = {
        (each.name, each.is_repeated)
        for path in METHODS
        for each in rules(path).parse(b"").DESCRIPTOR.fields
        if each.message_type is not None
    }
    optional = {("ttl", False), ("hint", False), ("reservations", True)}
    optional |= {("groups", True), ("group_pages", True), ("operations", True)}
    assert parts == {(name, False) for name in REQUIRED} | optional


def test_a_message_that_is_there_may_be_empty() -> None:
    """A missing message is refused by name. An empty one is accepted."""
    method = rules("InsertPrefix")
    request = prefix_cache_pb2.InsertPrefixRequest(caller=prefix_cache_pb2.Caller())
    with pytest.raises(InvalidField) as caught:
        require_fields(request, method)
    assert caught.value.metadata == {"field": "sequence", "why": "missing"}
    request.sequence.SetInParent()
    require_fields(request, method)


def test_only_a_prefetch_needs_no_caller() -> None:
    """Every other request with a caller has to have it."""
    methods = [each for each in map(rules, METHODS) if each.has_caller]
    free = {each.path for each in methods if "caller" not in each.required}
    assert free == {"/kvstore.v1.PrefixCacheService/PrefetchPrefix"}
    assert rules("PrefetchPrefix").required == ("sequence",)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_an_id_has_128_bits(length: int) -> None:
    """Every method checks the ids of its requests; a list and a watch may leave theirs out."""
    for method in map(rules, METHODS):
        request = method.parse(b"")
        for part in method.required:
            getattr(request, part).SetInParent()
        for name in method.ids:
            setattr(request, name, bytes(16))
            require_fields(request, method)
            setattr(request, name, bytes(length))
            with pytest.raises(InvalidField) as caught:
                require_fields(request, method)
            assert caught.value.metadata["field"] == name
    assert rules("ListPins").ids == rules("WatchEvents").ids == ()
    assert rules("OpenNamespace").ids == ("lease_id",)
    assert rules("AcquirePrefix").ids == ("namespace_id",)
