"""The size limits of requests with and without token ids."""

import pytest

from kvstore.core.values.limits import Limits
from kvstore.errors import LimitExceeded
from kvstore.rpc.pipeline import GIVING_BACK, require_size, size_limit_of
from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2

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


def test_a_request_over_its_limit_is_named() -> None:
    """A request over its limit is refused with the limit's name, its maximum and the size."""
    limits = Limits(max_short_message_bytes=5)
    require_size(5, "max_short_message_bytes", limits)
    with pytest.raises(LimitExceeded) as error:
        require_size(6, "max_short_message_bytes", limits)
    wanted = {"limit": "max_short_message_bytes", "maximum": "5", "value": "6"}
    assert error.value.metadata == wanted


def test_what_gives_back_is_in_the_contract() -> None:
    """The calls that no rate limit refuses exist in the contract, and none carries tokens."""
    assert set(METHODS) >= GIVING_BACK
    assert not {each for each in GIVING_BACK if each.rpartition("/")[2] in WITH_TOKENS}
