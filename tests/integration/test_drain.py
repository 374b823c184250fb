"""A store that drains while clients are at work."""

import os
import signal

from kvstore_client import ClientConfig
from kvstore_client.testing import RunningStore, running_store
from pages.stamped_pages import SMALL_STORE, TOKENS, open_client, write_and_insert

LIMIT = 30.0
# An idle client renews its lease after a third of the TTL, which is later than these tests wait.
CONFIG = ClientConfig(ttl=10 * LIMIT, call_timeout=LIMIT)
# The store would wait that long for a lease, and every test for less.
GRACE = ("--drain-grace", "600")


def ended(store: RunningStore) -> int:
    """Waits until a store ends by itself. Returns its exit status."""
    return store._started().wait(LIMIT)


def test_an_idle_client_lets_a_draining_store_go() -> None:
    """The store asks an idle client to renew its lease. It revokes the lease, so the store ends."""
    with running_store(*SMALL_STORE, *GRACE) as store:
        client, namespace = open_client(store.runtime_dir, CONFIG)
        os.kill(store.pid, signal.SIGTERM)
        assert ended(store) == 0
        assert "drained=True leases_left=0" in " ".join(store.log.split())
        assert namespace.match(TOKENS).failure is not None
        client.close()


def test_a_draining_store_waits_for_what_is_held() -> None:
    """A draining store keeps held pages until their release, and ends then."""
    with running_store(*SMALL_STORE, *GRACE) as store:
        client, namespace = open_client(store.runtime_dir, CONFIG)
        write_and_insert(namespace, TOKENS)
        match = namespace.match([*TOKENS, 1])
        assert match.page_count
        before = [bytes(namespace.page(page)) for page in match.pages]
        os.kill(store.pid, signal.SIGTERM)
        # The client has noticed, for it begins nothing any more.
        while not (late := namespace.match(TOKENS)).failure:
            late.release()
        assert store._started().poll() is None
        assert [bytes(namespace.page(page)) for page in match.pages] == before
        match.release()
        assert ended(store) == 0
        assert "drained=True" in store.log
        client.close()
