"""One tenant's events over real sockets: numbers, replays, snapshots and heartbeats."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from core.core_builders import CoreWorld, paged
from core.tiered_world import make, move
from kv_events.consumer import END, Consumer
from kv_events.stream_rig import StreamRig

Rigs = Callable[..., StreamRig]
Consumers = Callable[..., Consumer]


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Rigs]:
    """Makes streams over worlds, and closes them."""
    made: list[StreamRig] = []

    def make_rig(world: CoreWorld | None = None, **settings: object) -> StreamRig:
        world = CoreWorld(slots=64) if world is None else world
        made.append(StreamRig(tmp_path, world, **settings))  # type: ignore[arg-type]  # any of them
        return made[-1]

    yield make_rig
    for each in made:
        each.close()


@pytest.fixture
def consumers() -> Iterator[Consumers]:
    """Makes consumers of streams, and closes them."""
    made: list[Consumer] = []

    def make_consumer(rig: StreamRig, **settings: object) -> Consumer:
        made.append(rig.consumer(**settings))  # type: ignore[arg-type]  # any of them
        return made[-1]

    yield make_consumer
    for each in made:
        each.close()


def test_who_comes_late_is_given_all(rigs: Rigs, consumers: Consumers) -> None:
    """The first batch that it sees is not the first one: it asks for those before."""
    rig = rigs()
    rig.world.worker.publish("abcd", "abxy")
    rig.step()
    consumer = consumers(rig)
    rig.settle(consumer)
    assert consumer.replays == 1
    assert rig.there(1)
    assert rig.stream.use().snapshot_count == 1


def test_batches_without_events_come_every_second(rigs: Rigs, consumers: Consumers) -> None:
    """A consumer thus sees that the last ones were lost."""
    rig = rigs()
    consumer = consumers(rig)
    rig.settle(consumer)
    number = rig.stream.use().last_number
    rig.step()
    assert rig.stream.use().last_number == number
    rig.clock.now += 1.0
    rig.step()
    assert rig.stream.use().last_number == number + 1
    consumer.follow(number + 1)


@pytest.mark.parametrize("form", ["map", "array"])
def test_lost_batches_are_replayed(rigs: Rigs, consumers: Consumers, form: str) -> None:
    """Once a later one shows that they are lost."""
    rig = rigs(form=form)
    lost: set[int] = set()
    consumer = consumers(rig, loses=lost.__contains__)
    rig.settle(consumer)
    number = rig.stream.use().last_number
    lost.update((number + 1, number + 2))
    for letters in ("abc", "abx"):
        rig.world.worker.publish(letters)
        rig.step()
    replays = consumer.replays
    rig.settle(consumer)
    assert consumer.replays == replays + 1
    assert rig.stream.use().snapshot_count == 1
    assert rig.stream.use().replay_count == consumer.replays


def test_what_the_buffer_lacks_is_a_snapshot(rigs: Rigs, consumers: Consumers) -> None:
    """All is cleared and listed anew, at most once in ten seconds."""
    rig = rigs(most_batches=3)
    lost: set[int] = set()
    consumer = consumers(rig, loses=lost.__contains__)

    def lose_some(letters: str) -> None:
        number = rig.stream.use().last_number
        lost.update(range(number + 1, number + len(letters)))
        for letter in letters:
            rig.world.worker.publish(letter)
            rig.step()
        consumer.follow(number + len(letters), rig.step)
        rig.step()

    rig.world.worker.publish("abc")
    rig.settle(consumer)
    snapshots = rig.stream.use().snapshot_count
    rig.clock.now += 10.0
    lose_some("pqrst")
    assert rig.stream.use().snapshot_count == snapshots + 1
    rig.clock.now += 9.0
    lose_some("uvwxyz")
    assert rig.stream.use().snapshot_count == snapshots + 1
    rig.clock.now += 1.0
    with capture_logs() as lines:
        rig.step()
    assert [(each["event"], each["why"]) for each in lines] == [("kv_events_snapshot", "gap")]
    rig.settle(consumer)


def test_changes_that_do_not_fit_are_a_snapshot(rigs: Rigs, consumers: Consumers) -> None:
    """They are counted, and who follows has all the same."""
    rig = rigs(room_bytes=2000)
    consumer = consumers(rig)
    rig.settle(consumer)
    for letter in "abcdefghijkl":
        rig.world.worker.publish(letter * 2)
    rig.settle(consumer)
    use = rig.stream.use()
    assert use.lost_change_count == 12
    assert (use.snapshot_count, consumer.snapshots) == (2, 2)
    assert use.stored_block_count == 24


def test_a_snapshot_of_several_parts_goes_on_beside_changes(
    rigs: Rigs, consumers: Consumers
) -> None:
    """Changes between two parts are published between them."""
    world = make(slots=2000, lower_slots=2000)
    rig = rigs(world)
    names = [a + b for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrstuvwxyz"]
    for each in names:
        world.worker.publish(f"{each}1", f"{each}2")
    consumer = consumers(rig)
    assert rig.stream.step()
    for each in names[::3]:
        world.evict_prefix(each)
    move(world, most=400)
    world.worker.publish("aazzzz", "new")
    rig.settle(consumer)
    assert rig.stream.use().snapshot_count == 1
    assert len(rig.there(2)) > 400


def test_a_loss_within_a_snapshot_begins_another(rigs: Rigs, consumers: Consumers) -> None:
    """Its parts would not fit to what was lost."""
    world = CoreWorld(slots=4000)
    rig = rigs(world, room_bytes=1 << 20)
    names = [a + b for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrstuvwxyz"]
    world.worker.publish(*(f"{each}{end}" for each in names for end in "12"))
    consumer = consumers(rig)
    assert rig.stream.step()
    for _ in range(3):
        for each in names:
            world.evict_prefix(each)
            world.worker.publish(f"{each}3")
    assert not rig.stream.step()
    rig.settle(consumer)
    use = rig.stream.use()
    assert use.snapshot_count == 2
    assert use.lost_change_count > 1000


def test_a_successor_is_taken_at_once(rigs: Rigs, consumers: Consumers) -> None:
    """Although its clock is behind: what the one before had is cleared."""
    before = rigs()
    before.world.worker.publish("abc")
    consumer = consumers(before)
    before.settle(consumer)
    before.close()
    after = rigs(CoreWorld(slots=64), wall_seconds=3.0)
    after.world.worker.publish("xyz")
    after.settle(consumer)
    assert consumer.prefixes("GPU") == {paged("xyz"[:end]) for end in (1, 2, 3)}


def test_requests_that_are_none_are_refused(rigs: Rigs) -> None:
    """They cost a line of the log; the next one is answered."""
    rig = rigs()
    rig.step()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(rig.stream.use().replay_endpoint)
        with capture_logs() as lines:
            for frames in ((b"",), (b"", b"four"), (b"", b"12345678", b"")):
                dealer.send_multipart(frames)
            dealer.send_multipart((b"", bytes(8)))
            for _ in range(1000):
                rig.step()
                if dealer.poll(10):
                    break
        found = dealer.recv_multipart()
        while found[2] != END:
            found = dealer.recv_multipart()
    refused = [each for each in lines if each["event"] == "kv_events_request_refused"]
    assert [each["frames"] for each in refused] == [2, 3, 4]


def test_what_waits_is_published_at_the_end(rigs: Rigs, consumers: Consumers) -> None:
    """A server that ends has told of all that happened."""
    rig = rigs()
    consumer = consumers(rig)
    rig.settle(consumer)
    rig.world.worker.publish("abc")
    number = rig.stream.use().last_number
    rig.stream.close()
    consumer.follow(number + 1)
    assert rig.is_followed(consumer)
