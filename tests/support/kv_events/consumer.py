"""A consumer of KV events as routers are: it subscribes, sees gaps, and asks for replays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import msgspec
import zmq

from naive.blocks import NaiveBlocks

END = b"\xff" * 8
PATIENCE = 30_000
_NUMBER = Struct(">Q")
_FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size")


@dataclass
class Received:
    """A batch as it came: its number, its rank, its events as maps, and its time."""

    number: int
    rank: int
    events: list[dict[str, Any]]
    ts: float


def decoded(number: bytes, payload: bytes) -> Received:
    """Returns a batch from its frames, its events as maps in either form."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    return Received(_NUMBER.unpack(number)[0], rank, list(map(as_map, events)), ts)


def as_map(event: Any) -> dict[str, Any]:  # noqa: ANN401 - a map or an array
    """Returns an event as a map, in either form."""
    if isinstance(event, dict):
        return event
    if event[0] == "BlockStored":
        names = (*_FIELDS, "lora_id", "medium", "lora_name", "extra_keys")
        return dict(zip(names, event, strict=False))
    return dict(zip(("type", "block_hashes", "medium"), event, strict=False))


@dataclass
class Consumer:
    """Follows the events of one endpoint. ``loses`` says which batches get lost on their way."""

    events: str
    replay: str
    topic: str = ""
    replays_topic: bool = True
    # The server's public key, and its own keys.
    curve: tuple[bytes, bytes, bytes] | None = None
    loses: Callable[[int], bool] = lambda number: False  # noqa: ARG005
    blocks: dict[int, NaiveBlocks] = field(default_factory=dict)
    last: int = -1
    replays: int = 0
    snapshots: int = 0
    stored: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt_string(zmq.SUBSCRIBE, self.topic)
        self._sub.rcvhwm = 0
        self._sub.reconnect_ivl = 10
        self._protect(self._sub)
        self._sub.connect(self.events)
        self._dealer = self._dealer_of()

    def _dealer_of(self) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.rcvhwm = 0
        dealer.reconnect_ivl = 10
        self._protect(dealer)
        dealer.connect(self.replay)
        return dealer

    def _protect(self, socket: "zmq.Socket[bytes]") -> None:
        if self.curve is not None:
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = self.curve

    def close(self) -> None:
        """Closes its sockets."""
        self._context.destroy(linger=0)

    def receive(self, patience: int = 0, step: Callable[[], object] = lambda: None) -> bool:
        """Takes one batch if one comes within ``patience`` ms. ``step`` lets the publisher work.

        If batches before it are lost, it asks for them first.
        """
        if not self._sub.poll(patience):
            return False
        topic, number, payload = self._sub.recv_multipart()
        assert topic == self.topic.encode()
        batch = decoded(number, payload)
        if self.loses(batch.number):
            return True
        if batch.number > self.last + 1:
            self._ask(self.last + 1, step)
        if batch.number > self.last:
            self._apply(batch)
        return True

    def follow(self, number: int, step: Callable[[], object] = lambda: None) -> None:
        """Takes batches until it has ``number``, within a generous time."""
        for _ in range(PATIENCE):
            if self.last >= number:
                return
            step()
            self.receive(10, step)
        raise AssertionError(f"batch {number} did not come after {self.last}")

    def prefixes(self, medium: str, rank: int = 0) -> set[bytes]:
        """Returns the paths of the blocks in a medium."""
        return self.blocks.setdefault(rank, NaiveBlocks()).prefixes(medium)

    def _ask(self, number: int, step: Callable[[], object]) -> None:
        """Asks for all batches from ``number`` on and applies them, as Dynamo's indexer does."""
        self.replays += 1
        self._dealer.send_multipart((b"", _NUMBER.pack(number)))
        for _ in range(PATIENCE):
            step()
            if not self._dealer.poll(10):
                continue
            frames = self._dealer.recv_multipart()
            if self.replays_topic:
                empty, topic, number_bytes, payload = frames
                assert topic in (self.topic.encode(), b"")
            else:
                empty, number_bytes, payload = frames
            assert empty == b""
            if number_bytes == END:
                assert payload == b""
                return
            batch = decoded(number_bytes, payload)
            if batch.number > self.last:
                self._apply(batch)
        raise AssertionError("a replay did not end")

    def _apply(self, batch: Received) -> None:
        blocks = self.blocks.setdefault(batch.rank, NaiveBlocks())
        for each in batch.events:
            match each["type"]:
                case "BlockStored":
                    self._store(blocks, each)
                case "BlockRemoved":
                    blocks.remove(each["medium"], each["block_hashes"])
                case "AllBlocksCleared":
                    self.snapshots += 1
                    blocks.clear()
                case kind:
                    raise AssertionError(f"an event of the kind {kind}")
        self.last = batch.number

    def _store(self, blocks: NaiveBlocks, event: dict[str, Any]) -> None:
        names, size = event["block_hashes"], event["block_size"]
        tokens = event["token_ids"]
        assert len(tokens) == len(names) * size
        assert len({*names, event["parent_block_hash"]}) == len(names) + 1
        pages = [
            b"".join(token.to_bytes(4, "little") for token in tokens[n : n + size])
            for n in range(0, len(tokens), size)
        ]
        parent = event["parent_block_hash"] or 0
        blocks.store(event["medium"], parent, zip(names, pages, strict=True))
        self.stored.append(event)
