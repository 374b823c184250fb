"""A tenant's stream over a cache of the core's tests, and a consumer of it, on one thread."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

import zmq

from core.core_builders import EPOCH, TENANT, CoreWorld
from kv_events.consumer import Consumer
from kvstore.kv_events.block_names import BlockNames
from kvstore.kv_events.endpoints import endpoint_in
from kvstore.kv_events.replay_buffer import MOST_BATCHES, ReplayBuffer
from kvstore.kv_events.sequence_numbers import SequenceNumbers
from kvstore.kv_events.tenant_stream import EventSockets, Settings, TenantStream
from kvstore.kv_events.wire import Format, Wire
from kvstore.service.block_feed import ROOM_BYTES, BlockFeed
from naive.blocks import whole_paths
from stores.store_world import ManualClock


class StreamRig:
    """A stream that works when it is told, over sockets in ``folder``."""

    def __init__(
        self,
        folder: Path,
        world: CoreWorld,
        *,
        form: Format = "map",
        most_batches: int = MOST_BATCHES,
        room_bytes: int = ROOM_BYTES,
        wall_seconds: float = 1.7e9,
        clock: ManualClock | None = None,
    ) -> None:
        self.world = world
        self.clock = ManualClock() if clock is None else clock
        self._context = zmq.Context()
        endpoint = endpoint_in(folder, TENANT)
        sockets = EventSockets(
            self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER), endpoint
        )
        # No batch is dropped but those that a consumer loses.
        sockets.events.sndhwm = sockets.replay.sndhwm = 0
        sockets.events.bind(endpoint.events)
        sockets.replay.bind(endpoint.replay)
        self.names = BlockNames(b"secret", EPOCH)
        self.feed = BlockFeed(world.cache, Lock(), room_bytes=room_bytes)
        self.stream = TenantStream(
            TENANT,
            sockets,
            feed=self.feed,
            wire=Wire(form, self.names, has_tier_2=2 in world.cache.state.tiers),
            numbers=SequenceNumbers(folder / "last-number", lambda: wall_seconds),
            clock=self.clock,
            wall_clock=lambda: wall_seconds,
            settings=Settings(replays_topic=form == "map"),
            buffer=ReplayBuffer(most_batches),
        )

    def consumer(self, loses: Callable[[int], bool] = lambda number: False) -> Consumer:  # noqa: ARG005
        """Returns a consumer of the stream, which may be another rig's too."""
        endpoint = self.stream.use()
        return Consumer(
            endpoint.endpoint,
            endpoint.replay_endpoint,
            replays_topic=self.stream.replays_topic,
            loses=loses,
        )

    def step(self) -> None:
        """Publishes what waits, and goes on with a snapshot until it is over."""
        while self.stream.step():
            pass

    def settle(self, consumer: Consumer) -> None:
        """Brings a consumer to the stream's end, with heartbeats and due snapshots."""
        for _ in range(100):
            self.clock.now += 30.0
            self.step()
            consumer.follow(self.stream.use().last_number, self._beat)
            if self.is_followed(consumer):
                return
        raise AssertionError("the consumer never has what is there")

    def is_followed(self, consumer: Consumer) -> bool:
        """Returns whether a consumer has every block of the cache, and no other."""
        first, memory = self.there(1), self.there(1) | self.there(2)
        if 2 not in self.world.cache.state.tiers:
            memory = set()
        try:
            return consumer.prefixes("GPU") == first and consumer.prefixes("CPU") == memory
        except KeyError:
            # It lacks a block's parent until the snapshot that replaces what it lost.
            return False

    def there(self, tier: int) -> set[bytes]:
        """Returns the paths of the pages that the cache has in a tier."""
        found: set[bytes] = set()
        for namespace in self.world.cache.namespaces.values():
            for node in namespace.index.nodes.values():
                parts, above = [node.edge], node.parent
                while above is not None:
                    parts.append(above.edge)
                    above = above.parent
                tokens = b"".join(reversed(parts))
                count = node.copy_count if tier == 1 else node.lower_count
                width = namespace.width
                ends = range(node.start + 1, node.start + count + 1)
                found |= whole_paths((tokens[: end * width] for end in ends), width)
        return found

    def close(self) -> None:
        """Closes the sockets, without a goodbye as if the process were killed."""
        self._context.destroy(linger=0)

    def _beat(self) -> None:
        self.clock.now += 1.5
        self.step()
