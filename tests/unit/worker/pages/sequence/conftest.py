"""A small store, and an engine's rig on it for each test."""

from collections.abc import Iterator

import pytest

from engines.sequence_rig import STORE_SIZES, STORED, SequenceRig
from inference_worker.pages.private_arena import PRIVATE_EXTENT
from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity
from kvstore_client.testing import RunningStore, running_store
from pages.stamped_pages import LIMIT, nothing_held


@pytest.fixture(scope="module")
def store() -> Iterator[RunningStore]:
    """A store of 32 pages. Each test fills it in a namespace of its own."""
    with running_store(*STORE_SIZES) as running:
        yield running


@pytest.fixture(scope="module")
def client(store: RunningStore) -> Iterator[Client]:
    """A client with a long timeout."""
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as started:
        yield started


@pytest.fixture
def namespace(client: Client, request: pytest.FixtureRequest) -> Namespace:
    """The test's own namespace."""
    identity = NamespaceIdentity(request.node.nodeid.encode()[-64:])
    opened = client.namespace(identity, STORED)
    assert opened.wait_open(LIMIT), opened.failure
    return opened


@pytest.fixture
def rig(namespace: Namespace, client: Client) -> Iterator[SequenceRig]:
    """A rig on the store. At the end nothing may be held, mapped or used."""
    made = SequenceRig(namespace)
    yield made
    assert client.flush(LIMIT)
    assert nothing_held(client)
    assert made.private.used_count == 0
    assert made.pool.extents == {PRIVATE_EXTENT}
