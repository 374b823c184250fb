"""The size limits of requests with and without token ids."""

from collections.abc import Callable

import pytest

from kvstore.core.values.limits import Limits
from kvstore.rpc.pipeline import GIVING_BACK, size_limit_of
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
