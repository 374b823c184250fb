"""A peer of the attach socket for tests: speaks the protocol, frame by frame.

``python attach_peer.py SOCKET LEASE SECRET`` (both in hexadecimal) is a worker:
it binds, maps what it is given, writes its pid into each extent and says so, a
line each, and lives until its input ends.
"""

import mmap
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from kvstore.rpc.attach.frames import MAX_DESCRIPTORS, Frame, FrameReader, FrameWriter
from kvstore.v1 import attach_pb2

LIMIT = 30.0


class AttachPeer:
    """One connection to an attach socket; waits up to thirty seconds for what it is to get."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT)
        self._reader = FrameReader(self.socket, max_descriptors=MAX_DESCRIPTORS)
        self._writer = FrameWriter(self.socket)

    def connect(self, path: Path) -> None:
        """Connects; once."""
        self.socket.connect(str(path))

    def send(self, frame: attach_pb2.ClientFrame) -> None:
        """Sends a frame."""
        self._writer.push(frame.SerializeToString())
        self._writer.flush()

    def receive(self) -> tuple[attach_pb2.ServerFrame, tuple[int, ...]]:
        """Returns the next frame and its descriptors; raises EOFError at the end."""
        frame = self._reader.read()
        assert isinstance(frame, Frame)  # the socket waits
        return attach_pb2.ServerFrame.FromString(frame.payload), frame.descriptors

    def hello(
        self,
        *,
        cuda_mps: bool = False,
        version: int = 1,
        replaces: bool = False,
        knows_renew: bool = False,
    ) -> attach_pb2.ServerFrame:
        """Says Hello and returns the answer."""
        hello = attach_pb2.Hello(
            protocol_version=version,
            display_name="test",
            cuda_mps=cuda_mps,
            replaces=replaces,
            knows_renew=knows_renew,
        )
        self.send(attach_pb2.ClientFrame(hello=hello))
        return self.receive()[0]

    def bind(self, lease_id: bytes, secret: bytes) -> attach_pb2.ServerFrame:
        """Binds a lease and returns the answer."""
        bind = attach_pb2.Bind(lease_id=lease_id, lease_secret=secret)
        self.send(attach_pb2.ClientFrame(bind=bind))
        return self.receive()[0]

    def bind_mapped(
        self, lease_id: bytes, secret: bytes, extents: Iterable[attach_pb2.MappedExtent]
    ) -> attach_pb2.ServerFrame:
        """Binds a lease with extents that are mapped already, and returns the answer."""
        bind = attach_pb2.Bind(lease_id=lease_id, lease_secret=secret, mapped=extents)
        self.send(attach_pb2.ClientFrame(bind=bind))
        return self.receive()[0]

    def acknowledge(self, *extent_ids: int) -> attach_pb2.ServerFrame:
        """Acknowledges extents and returns the answer."""
        acknowledge = attach_pb2.Acknowledge(extent_ids=extent_ids)
        self.send(attach_pb2.ClientFrame(acknowledge=acknowledge))
        return self.receive()[0]

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()


def main() -> None:
    """Be a worker."""
    path, lease_id, secret = Path(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
    peer = AttachPeer()
    peer.connect(path)
    assert peer.hello().HasField("welcome")
    assert peer.bind(lease_id, secret).HasField("bound")
    print("bound", flush=True)  # noqa: T201 - what the test waits for
    frame, descriptors = peer.receive()
    for extent in frame.extents.extents:
        with mmap.mmap(descriptors[extent.host.descriptor_index], extent.host.size_bytes) as pages:
            pages[:8] = os.getpid().to_bytes(8, "little")
        peer.acknowledge(extent.extent_id)
        print("mapped", flush=True)  # noqa: T201 - what the test waits for
    sys.stdin.read()


if __name__ == "__main__":
    main()
