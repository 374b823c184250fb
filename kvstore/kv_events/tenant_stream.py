"""One tenant's events: its sockets, its numbers, and the snapshot under way."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import structlog
import zmq

from kvstore import background
from kvstore.core.pool.copy_changes import CopySweep
from kvstore.core.values.change_log import (
    CopiesRemoved,
    CopyChange,
    PageSpace,
    TakenChanges,
)
from kvstore.kv_events.endpoints import Endpoint
from kvstore.kv_events.replay_buffer import ReplayBuffer, SentBatch
from kvstore.kv_events.sequence_numbers import SequenceNumbers
from kvstore.kv_events.wire import Wire, WireEvent, rank_key
from kvstore.service.block_feed import BlockFeed, KvEventUse
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds after which a batch without events is sent, so that a consumer sees what it lost.
HEARTBEAT_SECONDS = 1.0
# Seconds between the beginnings of two snapshots. A snapshot is as large as the tree.
SNAPSHOT_SECONDS = 10.0
# Parts of a snapshot that are sent before it is another tenant's turn.
PARTS_AT_ONCE = 8
# What vLLM sends as the number behind the last batch of a replay.
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
NUMBER_BYTES = 8
# Frames of a request for a replay: the consumer's identity, nothing, and the first number.
REQUEST_FRAMES = 3
# Requests of one tenant that are answered before it is another's turn.
REQUESTS_AT_ONCE = 4


# Bytes of changes in a batch, of which each consumer that is behind keeps up to ten thousand.
BATCH_BYTES = 1 << 18


class EventSockets(NamedTuple):
    """A tenant's bound sockets, and their addresses."""

    events: "zmq.Socket[bytes]"
    replay: "zmq.Socket[bytes]"
    endpoint: Endpoint

    def close(self) -> None:
        """Closes both."""
        self.events.close()
        self.replay.close()


class Settings(NamedTuple):
    """Settings of all tenants' streams. ``replays_topic`` is set if replays have the topic too."""

    topic: bytes = b""
    replays_topic: bool = True
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    snapshot_seconds: float = SNAPSHOT_SECONDS


def in_parts(changes: list[CopyChange]) -> Iterator[list[CopyChange]]:
    """Yields the changes of one batch after the other. A batch has at least one."""
    part: list[CopyChange] = []
    size = 0
    for each in changes:
        part.append(each)
        size += each.size_bytes
        if size >= BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


class TenantStream:
    """Publishes one tenant's events in order. For the publisher's thread, except for ``use``.

    It begins with a snapshot: ``AllBlocksCleared``, and then all blocks. Another one follows if
    changes were lost before they were published, or if a consumer asks for batches that the buffer
    lacks.
    """

    def __init__(
        self,
        tenant: str,
        sockets: EventSockets,
        *,
        feed: BlockFeed,
        wire: Wire,
        numbers: SequenceNumbers,
        clock: Clock,
        wall_clock: Callable[[], float],
        settings: Settings,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        self._tenant = tenant
        self._sockets = sockets
        self._feed = feed
        self._wire = wire
        self._numbers = numbers
        self._next_number = numbers.first
        self._clock = clock
        self._wall_clock = wall_clock
        self._settings = settings
        self.replays_topic = settings.replays_topic
        self._buffer = ReplayBuffer() if buffer is None else buffer
        # The rank of each model, by the order of their first blocks.
        self._ranks: dict[tuple[bytes, object], int] = {}
        self._sweep: CopySweep | None = None
        # The reason of a snapshot that is due, or "".
        self._due = "start"
        self._snapshot_from = clock()
        self._beat_at = clock()
        self._batches = self._stored = self._removed = 0
        self._lost = self._snapshots = self._replays = 0

    def use(self) -> KvEventUse:
        """Returns the current counts. Any thread may ask."""
        return KvEventUse(
            tenant=self._tenant,
            endpoint=self._sockets.endpoint.events,
            replay_endpoint=self._sockets.endpoint.replay,
            last_number=self._next_number - 1,
            batch_count=self._batches,
            stored_block_count=self._stored,
            removed_block_count=self._removed,
            lost_change_count=self._lost,
            snapshot_count=self._snapshots,
            replay_count=self._replays,
        )

    def begin_anew(self, reason: str) -> None:
        """Plans a snapshot in place of the one under way, for a reason that the log has."""
        self._sweep, self._due = None, reason

    def step(self) -> bool:
        """Publishes what waits. Returns True if more is to be done at once."""
        self._publish(self._feed.take(self._tenant))
        now = self._clock()
        if self._due and now >= self._snapshot_from:
            self._begin_snapshot(now)
        for _ in range(PARTS_AT_ONCE):
            if self._sweep is None:
                break
            self._go_on(self._sweep)
            background.give_way()
        self._answer_replays()
        if now >= self._beat_at:
            self._send([], 0)
        return self._sweep is not None

    def close(self) -> None:
        """Publishes what waits, and closes the sockets."""
        self._publish(self._feed.take(self._tenant))
        self._sockets.close()

    def _publish(self, taken: TakenChanges) -> None:
        """Publishes changes. If some were lost, a snapshot is due in place of all of them."""
        if taken.lost_count:
            self._lost += taken.lost_count + len(taken.changes)
            self.begin_anew("overflow")
            return
        for part in in_parts(taken.changes):
            for rank, changes in self._by_rank(part).items():
                self._send(self._wire.events(changes), rank)
                self._count(changes)
            background.give_way()

    def _rank_of(self, space: PageSpace) -> int:
        return self._ranks.setdefault(rank_key(space), len(self._ranks))

    def _by_rank(self, changes: Iterable[CopyChange]) -> dict[int, list[CopyChange]]:
        found: dict[int, list[CopyChange]] = {}
        for each in changes:
            found.setdefault(self._rank_of(each.space), []).append(each)
        return found

    def _count(self, changes: Iterable[CopyChange]) -> None:
        for each in changes:
            count = sum(map(len, each.ids))
            if isinstance(each, CopiesRemoved):
                self._removed += count
            else:
                self._stored += count

    def _begin_snapshot(self, now: float) -> None:
        """Publishes that nothing is there, after which the parts of the snapshot follow."""
        reason, self._due = self._due, ""
        self._snapshot_from = now + self._settings.snapshot_seconds
        self._snapshots += 1
        self._sweep, spaces = self._feed.begin_sweep(self._tenant)
        for each in spaces:
            self._rank_of(each)
        for rank in range(max(len(self._ranks), 1)):
            self._send([self._wire.cleared()], rank, is_base=rank == 0)
        log.info("kv_events_snapshot", tenant=self._tenant, why=reason)

    def _go_on(self, sweep: CopySweep) -> None:
        part = self._feed.go_on(self._tenant, sweep)
        self._publish(part.taken)
        if self._sweep is not None:
            self._publish(TakenChanges(list(part.listed), 0))
            if sweep.is_done:
                self._sweep = None

    def _send(self, events: list[WireEvent], rank: int, *, is_base: bool = False) -> None:
        number = self._next_number
        self._numbers.reserve(number)
        self._next_number = number + 1
        payload = self._wire.encode(self._wall_clock(), events, rank)
        self._buffer.add(SentBatch(number, payload), is_base=is_base)
        frames = (self._settings.topic, number.to_bytes(NUMBER_BYTES, "big"), payload)
        # It drops the batch for each consumer that has too many waiting.
        self._sockets.events.send_multipart(frames)
        self._batches += 1
        self._beat_at = self._clock() + self._settings.heartbeat_seconds

    def _answer_replays(self) -> None:
        for _ in range(REQUESTS_AT_ONCE):
            if not self._sockets.replay.poll(0):
                return
            frames = self._sockets.replay.recv_multipart()
            if len(frames) == REQUEST_FRAMES and len(frames[-1]) == NUMBER_BYTES:
                self._replay(frames[0], int.from_bytes(frames[-1], "big"))
            else:
                log.warning("kv_events_request_refused", tenant=self._tenant, frames=len(frames))

    def _replay(self, consumer: bytes, number: int) -> None:
        """Sends a consumer the batches from ``number`` on, and then the mark of the end."""
        self._replays += 1
        if not self._buffer.is_enough(number) and not self._due:
            self._due = "gap"
        topic = (self._settings.topic,) if self._settings.replays_topic else ()
        for each in self._buffer.since(number):
            frames = (consumer, b"", *topic, each.number.to_bytes(NUMBER_BYTES, "big"))
            self._sockets.replay.send_multipart((*frames, each.payload))
            background.give_way()
        end = (b"",) if self._settings.replays_topic else ()
        self._sockets.replay.send_multipart((consumer, b"", *end, END_OF_REPLAY, b""))
