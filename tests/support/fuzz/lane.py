"""Calls that nobody means, over lanes that a worker may have, and what they were answered."""

import socket
import struct
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from fuzz.messages import Messages
from fuzz.reasons import WRONG, reason_of
from kvstore.v1 import attach_pb2
from kvstore_client.calls.blocking_frames import close_all, receive_frame, send_frame

LENGTHS = struct.Struct("<II")
# Seconds for the server to say what it has to say and hang up.
LIMIT = 30.0
# Most calls of one lane.
CALLS = 12
LIES = (0, 1, 5, 1025, (16 << 20) + 1, 1 << 31, (1 << 32) - 1)
# Microseconds: mostly time enough.
TIMEOUTS = (10_000_000, 10_000_000, 10_000_000, 60_000_000, 0, 1, 1 << 62)


class LanePeers:
    """Opens lanes under a living lease, and makes calls with drawn methods, heads and bodies.

    ``outcomes`` counts how calls ended; ``faults`` has a line for each refusal without an
    ErrorInfo of ours, for each that is a bug, and for each lane left hanging.
    """

    def __init__(self, path: Path, random: Random, messages: Messages) -> None:
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self._path = path
        self._random = random
        self._messages = messages

    def connect(self) -> int:
        """Opens a lane, make calls, see how it ends; returns how many were sent."""
        known = self._messages.known
        lease_id, secret = known["lease_id"][0], known["lease_secret"][0]
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(LIMIT)
            peer.connect(str(self._path))
            hello = attach_pb2.Hello(protocol_version=1)
            send_frame(peer, attach_pb2.ClientFrame(hello=hello))
            close_all(receive_frame(peer)[1])
            opening = attach_pb2.OpenLane(lease_id=lease_id, lease_secret=secret)
            send_frame(peer, attach_pb2.ClientFrame(open_lane=opening))
            answer, descriptors = receive_frame(peer)
            close_all(descriptors)
            if not answer.HasField("lane_opened"):
                # The lease is gone, by a call that was drawn.
                self.outcomes["no lane"] += 1
                return 1
            return self._talk(peer, list(answer.lane_opened.methods))

    def _talk(self, peer: socket.socket, methods: list[str]) -> int:
        count = self._random.randint(1, CALLS)
        for number in range(count):
            method = self._random.randrange(len(methods) + 1)
            name = methods[method].rpartition("/")[2] if method < len(methods) else "unknown"
            try:
                if not self._send(peer, methods, method):
                    return number + 1
                self._note(name, *self._answer(peer))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                self.outcomes["lane ended"] += 1
                return number + 1
            except TimeoutError:
                self.faults.append(f"{name}: a lane was neither answered nor ended")
                return number + 1
        return count

    def _send(self, peer: socket.socket, methods: list[str], method: int) -> bool:
        """Sends a call; returns False where it was left in the middle."""
        kind: Any = attach_pb2.LaneCall
        if method < len(methods):
            path = methods[method].removeprefix("/").replace("/", ".")
            pool = descriptor_pool.Default()
            kind = GetMessageClass(pool.FindMethodByName(path).input_type)
        body = self._messages.request(kind)
        head = attach_pb2.LaneCall(
            method=method, timeout_us=self._random.choice(TIMEOUTS)
        ).SerializeToString()
        if self._random.random() < 0.05:
            head = self._messages.request(attach_pb2.LaneCall)
        lengths = LENGTHS.pack(len(head), len(body))
        lies = self._random.random() < 0.05
        if lies:
            lengths = LENGTHS.pack(self._random.choice(LIES), self._random.choice(LIES))
        raw = lengths + head + body
        if self._random.random() < 0.02:
            peer.sendall(raw[: self._random.randrange(1, len(raw))])
            return False
        peer.sendall(raw)
        if lies:
            # Whatever was announced: no more comes.
            peer.shutdown(socket.SHUT_WR)
        return True

    def _answer(self, peer: socket.socket) -> tuple[attach_pb2.LaneAnswer, bytes]:
        head_bytes, body_bytes = LENGTHS.unpack(_receive(peer, LENGTHS.size))
        head = _receive(peer, head_bytes)
        return attach_pb2.LaneAnswer.FromString(head), _receive(peer, body_bytes)

    def _note(self, name: str, answer: attach_pb2.LaneAnswer, body: bytes) -> None:
        if not answer.HasField("status"):
            self.outcomes[f"lane {name} OK"] += 1
            return
        reason = reason_of(answer.status.details)
        if reason in WRONG or body:
            self.faults.append(f"lane {name}: refused without a reason of ours: {answer.status}")
        self.outcomes[f"lane {name} {reason}"] += 1


def _receive(peer: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = peer.recv(count - len(received))
        if not data:
            raise EOFError
        received += data
    return received
