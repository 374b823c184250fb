"""The thread that publishes KV events of a whole store in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from structlog.testing import capture_logs

from kv_events.consumer import Consumer
from kvstore.core.values.requests import Caller, ReservationRequest
from kvstore.kv_events import sequence_numbers
from kvstore.kv_events.block_names import BlockNames
from kvstore.kv_events.endpoints import UnusableEndpoint
from kvstore.kv_events.publisher import KvEventPublisher
from kvstore.kv_events.sequence_numbers import SequenceNumbers
from kvstore.kv_events.tenant_stream import Settings
from kvstore.kv_events.wire import Wire
from kvstore_client.testing import wait_until
from stores.store_world import RunningClock, World, make_world, sequence_of

Starts = Callable[..., KvEventPublisher]


@pytest.fixture
def world() -> Iterator[World]:
    """Provides a store of 64 pages."""
    made = make_world(slots=64, extent_slots=32)
    yield made
    made.close()


@pytest.fixture
def starts(world: World, tmp_path: Path) -> Iterator[Starts]:
    """Makes publishers of the store, and closes them."""
    with ExitStack() as stack:

        def start(folder: Path = tmp_path / "events", **settings: Any) -> KvEventPublisher:  # noqa: ANN401 - any of them
            state = tmp_path / "state"
            state.mkdir(exist_ok=True)
            publisher = KvEventPublisher(
                world.store.follow_blocks(),
                wire=partial(
                    Wire, "map", BlockNames(b"secret", world.store.epoch), has_tier_2=False
                ),
                numbers=SequenceNumbers(state / "last-number", lambda: 1.7e9),
                clock=RunningClock(),
                folder=folder,
                settings=Settings(heartbeat_seconds=0.05, snapshot_seconds=0.1),
                **{"addresses": {}, **settings},
            )
            publisher.start()
            stack.callback(publisher.close)
            return publisher

        yield start


def insert(world: World, caller: Caller, namespace_id: bytes, number: int) -> None:
    """Inserts two pages of their own."""
    request = ReservationRequest(number, 0, 2)
    world.store.reserve(caller, namespace_id, [request])
    sequence = sequence_of(2, rest=0, salt=1000 * number)
    world.store.insert(caller, number, sequence)
    world.store.abort(caller, [number])


def ready(world: World, tenant: str) -> tuple[Caller, bytes]:
    """Returns a worker of a tenant and its namespace, with memory."""
    caller = world.worker(tenant=tenant)
    return caller, world.open_namespace(caller)


def paths(consumer: Consumer) -> set[bytes]:
    """Returns what a consumer knows, after what waits for it."""
    consumer.receive(50)
    return consumer.prefixes("GPU")


def test_each_tenant_has_an_endpoint(world: World, starts: Starts, tmp_path: Path) -> None:
    """A tenant's consumer hears of no other tenant, and a tenant's equal pages are its own."""
    publisher = starts()
    for tenant in ("a", "b", "a"):
        caller, namespace_id = ready(world, tenant)
        insert(world, caller, namespace_id, world.process_id(caller))
    assert wait_until(lambda: len(publisher.use()) == 2)
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o700
    with ExitStack() as stack:
        found = {}
        for use in publisher.use():
            consumer = Consumer(use.endpoint, use.replay_endpoint)
            stack.callback(consumer.close)
            count = {"a": 4, "b": 2}[use.tenant]
            assert wait_until(lambda c=consumer, n=count: len(paths(c)) == n)  # type: ignore[misc]  # both are bound
            found[use.tenant] = set(consumer.blocks[0].known)
    assert not found["a"] & found["b"]
    assert publisher.is_alive()
    assert publisher.last_tick >= 0


def test_a_failure_is_repaired_by_a_snapshot(
    world: World, starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number is used that a later server could use too; then all is published anew."""
    monkeypatch.setattr(sequence_numbers, "RESERVED", 4)
    publisher = starts()
    caller, namespace_id = ready(world, "a")
    insert(world, caller, namespace_id, 5)
    assert wait_until(lambda: bool(publisher.use()))
    with capture_logs() as lines:
        rmtree(tmp_path / "state")
        assert wait_until(lambda: publisher.failure_count > 0)
        insert(world, caller, namespace_id, 6)
        (tmp_path / "state").mkdir()
    assert any(each["event"] == "kv_events_failed" for each in lines)
    [use] = publisher.use()
    consumer = Consumer(use.endpoint, use.replay_endpoint)
    try:
        assert wait_until(lambda: len(paths(consumer)) == 4)
        assert publisher.is_alive()
    finally:
        consumer.close()
    assert publisher.use()[0].snapshot_count > 1


def test_a_tenant_without_an_endpoint_hinders_no_other(
    world: World, starts: Starts, tmp_path: Path
) -> None:
    """Its name is in the log, once."""
    long = tmp_path / ("x" * 100)
    with capture_logs() as lines:
        publisher = starts(long, addresses={"b": f"ipc://{tmp_path}/b"})
        for tenant in ("a", "b"):
            caller, namespace_id = ready(world, tenant)
            insert(world, caller, namespace_id, world.process_id(caller))
        assert wait_until(
            lambda: [each.stored_block_count > 1 for each in publisher.use()] == [True]
        )
    refused = [each for each in lines if each["event"] == "kv_events_unusable"]
    assert [each["tenant"] for each in refused] == ["a"]


def test_an_address_that_cannot_be_bound_is_refused(starts: Starts, tmp_path: Path) -> None:
    """At the start, with its name."""
    with pytest.raises(UnusableEndpoint, match=r"kv_events_bind ipc:///nowhere/at/all: No such"):
        starts(tmp_path, addresses={"a": "ipc:///nowhere/at/all"})
