"""Bytes that nobody means, to an attach socket, and what they were answered."""

import os
import socket
from array import array
from collections import Counter, deque
from pathlib import Path
from random import Random

from fuzz.messages import Messages
from fuzz.reasons import WRONG, reason_of
from kvstore.v1 import attach_pb2
from kvstore_client.calls.blocking_frames import BrokenFrames, close_all, receive_frame

# Connections that say nothing, or stop within a frame, and stay open.
SILENT = 100
# Most frames of one connection.
FRAMES = 6
# Seconds for the server to say what it has to say and hang up.
LIMIT = 30.0
LENGTHS = (0, 1, 5, (16 << 20) + 1, 1 << 31, (1 << 32) - 1)


class AttachPeers:
    """Connects again and again, sends, and reads to the end of the connection.

    ``outcomes`` counts what came; ``faults`` has a line for each refusal without an
    ErrorInfo of ours, for each that is a bug, and for each connection left hanging.
    """

    def __init__(self, path: Path, random: Random, messages: Messages) -> None:
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self._path = path
        self._random = random
        self._messages = messages
        self._silent: deque[socket.socket] = deque()
        self._nothing = os.open(os.devnull, os.O_RDONLY)

    def connect(self) -> int:
        """Makes one connection, send frames, see how it ends; returns how many were sent."""
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(LIMIT)
        peer.connect(str(self._path))
        count = self._random.randint(1, FRAMES)
        try:
            for _ in range(count):
                self._send(peer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused at an earlier frame
        if self._random.random() < 0.05:
            self._leave_silent(peer)
        else:
            self._read_to_the_end(peer)
        return count

    def close(self) -> None:
        """Hangs up everywhere."""
        while self._silent:
            self._silent.popleft().close()
        os.close(self._nothing)

    def _send(self, peer: socket.socket) -> None:
        frame = self._messages.request(attach_pb2.ClientFrame)
        if self._random.random() < 0.3:
            hello = attach_pb2.Hello(protocol_version=1)
            frame = attach_pb2.ClientFrame(hello=hello).SerializeToString()
        length = len(frame)
        if self._random.random() < 0.1:
            length = self._random.choice(LENGTHS)
        raw = length.to_bytes(4, "little") + frame
        if self._random.random() < 0.1:
            raw = raw[: self._random.randrange(1, len(raw) + 1)]
        if self._random.random() < 0.05:
            count = self._random.choice((1, 2, 64, 253))
            rights = array("i", [self._nothing] * count)
            peer.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        else:
            peer.sendall(raw)

    def _leave_silent(self, peer: socket.socket) -> None:
        self._silent.append(peer)
        self.outcomes["left silent"] += 1
        if len(self._silent) > SILENT:
            self._silent.popleft().close()

    def _read_to_the_end(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.shutdown(socket.SHUT_WR)
                while True:
                    frame, descriptors = receive_frame(peer)
                    close_all(descriptors)
                    self._note(frame)
                    if frame.HasField("lane_opened"):
                        return  # what comes now are no frames; LanePeers has lanes
            except EOFError:
                self.outcomes["hung up"] += 1
            except TimeoutError:
                self.faults.append("a connection was neither answered nor ended")
            except BrokenFrames as error:
                self.faults.append(f"the answer is no frame: {error}")
            except OSError:
                self.outcomes["reset"] += 1

    def _note(self, frame: attach_pb2.ServerFrame) -> None:
        kind = frame.WhichOneof("message")
        if kind != "refused":
            self.outcomes[str(kind)] += 1
            return
        reason = reason_of(frame.refused.details)
        if reason in WRONG:
            self.faults.append(f"refused without a reason of ours: {frame.refused}")
        self.outcomes[f"refused {reason}"] += 1
