"""The choice between lane and gRPC in a client, and its reaction when one of them breaks."""

from collections.abc import Iterator

import pytest

from kvstore_client import Client, ClientConfig, errors
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    hits,
    open_client,
    write_and_insert,
)
from processes.proxy import GOOD, SILENT, Proxy, proxied


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """Provides a line to a store that has the tokens' pages."""
    with running_store(*SMALL_STORE) as store, proxied(store.runtime_dir) as made:
        client, namespace = open_client(store.runtime_dir)
        write_and_insert(namespace, TOKENS)
        client.close()
        yield made


@pytest.mark.parametrize("hot_lane", [True, False])
def test_the_request_path_goes_over_lanes(proxy: Proxy, *, hot_lane: bool) -> None:
    """The request path uses lanes by default, so requests work while gRPC is silent."""
    config = ClientConfig(call_timeout=LIMIT if hot_lane else 1.0, hot_lane=hot_lane)
    with Client(proxy.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        proxy.calls.line = SILENT
        try:
            if hot_lane:
                assert hits(namespace)
                assert client.flush(LIMIT)
            else:
                assert isinstance(namespace.match(TOKENS).failure, errors.StoreTimedOut)
        finally:
            proxy.calls.line = GOOD


def test_lanes_that_say_nothing_cost_one_request_its_deadline(proxy: Proxy) -> None:
    """Silent lanes cost one request its deadline, and the next ones go over gRPC."""
    config = ClientConfig(call_timeout=3.0, first_backoff=0.01, longest_backoff=0.1)
    with Client(proxy.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        assert hits(namespace)
        proxy.attach.line = SILENT
        try:
            assert isinstance(namespace.match(TOKENS).failure, errors.StoreTimedOut)
            assert wait_until(lambda: hits(namespace))
        finally:
            proxy.attach.line = GOOD
