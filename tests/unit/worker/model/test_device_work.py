"""The store learns of pages only after the device has finished with them."""

from collections.abc import Callable

import pytest
import torch

from engines.sequence_rig import LAYOUT, STORED, SequenceRig
from inference_worker.model.device import DeviceWork
from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity
from kvstore_client.testing import RunningStore
from pages.stamped_pages import LIMIT

IDS = list(range(50, 67))
# One extent.
SIZE = str(16 * LAYOUT.page_bytes)
pytestmark = pytest.mark.store("--tier1-bytes", SIZE, "--extent-bytes", SIZE)


def opened(client: Client) -> Namespace:
    """Opens the namespace that all clients here share."""
    namespace = client.namespace(NamespaceIdentity(b"device work"), STORED)
    assert namespace.wait_open(LIMIT), namespace.failure
    return namespace


def client_of(store: RunningStore, wait: Callable[[], None] | None = None) -> Client:
    """Returns a client with a long timeout."""
    config = ClientConfig(call_timeout=LIMIT, wait_for_device=wait)
    return Client(store.runtime_dir, config)


def test_pages_are_told_and_given_back_after_a_wait(fresh_store: RunningStore) -> None:
    """While they wait an insert's pages are not found, and a release's pages stay pinned."""
    seen: list[tuple[int, int]] = []

    with client_of(fresh_store) as other:
        visible = opened(other)

        def look() -> None:
            held = other.admin.stats()
            with visible.match(IDS) as match:
                seen.append((match.page_count, held.reservation_count))

        with client_of(fresh_store, look) as client:
            rig = SequenceRig(opened(client))
            with rig.open(IDS) as pages:
                for start, end in ((0, 8), (8, 17)):
                    rig.compute(pages, IDS, start, end)
                    assert len(pages.publish(IDS, end)) == 2
    # Two inserts and a release each see the effects of the one before, and no more.
    assert seen == [(0, 1), (2, 1), (4, 1)]


def test_on_a_cpu_there_is_nothing_to_wait_for() -> None:
    """A CPU's writes are done when a call returns, so no device is touched."""
    DeviceWork("cpu").wait()
    assert not torch.cuda.is_initialized()
