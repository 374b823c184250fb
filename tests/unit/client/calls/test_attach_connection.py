"""The attach connection of a client, against a scripted peer."""

import fcntl
import itertools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Condition

import pytest
from google.rpc import status_pb2

from kvstore.v1 import attach_pb2, types_pb2
from kvstore_client import errors
from kvstore_client.calls.attach_connection import AttachConnection
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.host_extent import POPULATED_BYTES
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from processes.open_descriptors import open_descriptors
from processes.resident_bytes import resident_bytes
from wire.scripted_store import Answer, ScriptedAttach, refusal, sealed_memfd

WELCOME = attach_pb2.ServerFrame(welcome=attach_pb2.Welcome(credential="c", store_epoch=5))
BOUND = attach_pb2.ServerFrame(bound=attach_pb2.Bound(pid=7))
REFUSED = attach_pb2.ServerFrame(
    refused=status_pb2.Status.FromString(refusal("PEER_REFUSED", why="test"))
)

Start = Callable[..., tuple[ScriptedAttach, AttachConnection]]


@pytest.fixture
def start(runtime_dir: RuntimeDir) -> Iterator[Start]:
    """Makes a scripted peer and a connection to it, and closes both afterwards."""
    made: list[tuple[ScriptedAttach, AttachConnection]] = []

    def make(*answers: Sequence[Answer]) -> tuple[ScriptedAttach, AttachConnection]:
        peer = ScriptedAttach(runtime_dir.attach_socket, *answers)
        made.append((peer, AttachConnection(runtime_dir.attach_socket)))
        return made[-1]

    yield make
    for peer, connection in made:
        connection.close()
        peer.close()


def hello(connection: AttachConnection, seconds: float = 30) -> attach_pb2.Welcome:
    """Sends Hello and returns the answer."""
    return connection.hello("me", cuda_mps=False, deadline=Deadline(seconds))


def extents(*ids: int, **fields: int) -> attach_pb2.ServerFrame:
    """Returns an announcement of 64-byte extents, each with the descriptor of its position."""
    frame = attach_pb2.ServerFrame(extents=attach_pb2.Extents())
    for index, extent_id in enumerate(ids):
        frame.extents.extents.add(
            extent_id=extent_id,
            slot_count=1,
            slot_bytes=64,
            host=types_pb2.HostHandle(descriptor_index=index, size_bytes=64),
            **fields,
        )
    return frame


class Served:
    """A bound connection, its extent table, and the errors that end it."""

    def __init__(self, start: Start, *answers: Sequence[Answer]) -> None:
        self.peer, self.connection = start([(WELCOME, ())], [(BOUND, ())], *answers)
        hello(self.connection)
        self.connection.bind(b"lease", b"secret", Deadline(30))
        self.ends: SimpleQueue[errors.StoreError] = SimpleQueue()
        # Not this object's own: memory keeps what it is to tell.
        tell = self.connection.tell_unmapped
        self.table = ExtentTable(
            Condition(), itertools.count(), lambda each: tell([each]), store_epoch=5
        )
        self.renewals: SimpleQueue[None] = SimpleQueue()
        self.connection.serve(self.table, self.ends.put, lambda: self.renewals.put(None))

    def announce(self, frame: attach_pb2.ServerFrame, *descriptors: int) -> None:
        """Sends a frame with descriptors and closes them here."""
        self.peer.send((frame, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)


def test_the_handshake_says_who_and_which_lease(start: Start) -> None:
    """Hello and Bind send their arguments and return the answers."""
    peer, connection = start([(WELCOME, ())], [(BOUND, ())])
    assert hello(connection).credential == "c"
    assert connection.bind(b"lease", b"secret", Deadline(30)).pid == 7
    said = peer.frames
    assert (said[0].hello.protocol_version, said[0].hello.display_name) == (1, "me")
    assert (said[1].bind.lease_id, said[1].bind.lease_secret) == (b"lease", b"secret")


def test_nobody_there_is_unavailable(runtime_dir: RuntimeDir) -> None:
    """A missing socket raises StoreUnavailable with the folder's path."""
    connection = AttachConnection(runtime_dir.attach_socket)
    with pytest.raises(errors.StoreUnavailable, match=str(runtime_dir.path)):
        hello(connection)
    connection.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (REFUSED, errors.PeerRefused),
        (BOUND, errors.StoreUnavailable),
        (b"\xff", errors.StoreUnavailable),
    ],
    ids=["refused", "another", "none"],
)
def test_an_answer_that_is_no_welcome_fails(
    start: Start, answer: attach_pb2.ServerFrame | bytes, kind: type[Exception]
) -> None:
    """A refusal raises its own class. Any other wrong frame raises StoreUnavailable."""
    _, connection = start([(answer, ())])
    with pytest.raises(errors.StoreError) as raised:
        hello(connection)
    assert type(raised.value) is kind


def test_no_answer_is_a_timeout(start: Start) -> None:
    """A peer that does not answer costs the deadline and no more."""
    _, connection = start([])
    with pytest.raises(errors.StoreTimedOut):
        hello(connection, 0.05)


def test_an_aborted_connection_asks_nothing(start: Start) -> None:
    """The handshake fails after an abort by any thread."""
    peer, connection = start([(WELCOME, ())], [(BOUND, ())])
    hello(connection)
    connection.abort()
    with pytest.raises(errors.StoreUnavailable):
        connection.bind(b"lease", b"secret", Deadline(30))
    assert len(peer.frames) == 1


def test_announced_extents_are_mapped_and_acknowledged(start: Start) -> None:
    """Each extent is mapped from its own descriptor and acknowledged, and is then usable."""
    answer = attach_pb2.ServerFrame(acknowledged=attach_pb2.Acknowledged(extent_ids=[4, 5]))
    served = Served(start, [(answer, ())])
    before = open_descriptors("memfd:")
    contents = (b"four", b"five")
    served.announce(extents(4, 5), *(sealed_memfd(64, REQUIRED_SEALS, c) for c in contents))
    assert wait_until(lambda: served.table.counted_on([4, 5]))
    for extent_id, content in zip((4, 5), contents, strict=True):
        extent = served.table.get(extent_id)
        assert extent is not None
        assert bytes(extent.slot(0)[:4]) == content
    assert served.peer.frames[2].acknowledge.extent_ids == [4, 5]
    assert open_descriptors("memfd:") <= before


def test_memory_is_prepared_while_the_store_says_nothing(start: Start) -> None:
    """All memory is populated in steps, and the store's requests are answered meanwhile."""
    answer = attach_pb2.ServerFrame(acknowledged=attach_pb2.Acknowledged(extent_ids=[4, 5]))
    served = Served(start, [(answer, ())])
    size = 2 * POPULATED_BYTES + mmap.PAGESIZE
    frame = extents(4, 5)
    for extent in frame.extents.extents:
        extent.slot_bytes = extent.host.size_bytes = size
    # No other test's, which may be about to go.
    name = "kvstore-prepared"
    served.announce(frame, *(sealed_memfd(size, REQUIRED_SEALS, name=name) for _ in range(2)))
    assert wait_until(lambda: served.table.counted_on([4, 5]))
    assert wait_until(lambda: resident_bytes(name) == 2 * size)
    served.announce(retire(4))
    assert wait_until(lambda: len(served.peer.frames) == 4)
    assert served.peer.frames[3].unmapped.extent_ids == [4]
    assert resident_bytes(name) == size


def retire(*ids: int) -> attach_pb2.ServerFrame:
    """Returns a frame that asks to unmap extents."""
    return attach_pb2.ServerFrame(retire=attach_pb2.Retire(extent_ids=ids))


def test_retired_extents_are_unmapped(start: Start) -> None:
    """A retired extent leaves the table, and the store is told that it is unmapped."""
    served = Served(start)
    served.announce(extents(4), sealed_memfd(64, REQUIRED_SEALS))
    assert wait_until(lambda: served.table.get(4) is not None)
    served.announce(retire(4))
    assert wait_until(lambda: len(served.peer.frames) == 4)
    assert served.peer.frames[3].unmapped.extent_ids == [4]
    assert served.table.get(4) is None


def test_a_view_delays_the_answer(start: Start) -> None:
    """A retired extent stays mapped while a view of it exists; others are answered at once."""
    served = Served(start)
    served.announce(extents(4), sealed_memfd(64, REQUIRED_SEALS))
    assert wait_until(lambda: served.table.get(4) is not None)
    extent = served.table.get(4)
    assert extent is not None
    view = extent.view()
    del extent
    served.announce(retire(4, 9))
    assert wait_until(lambda: len(served.peer.frames) == 4)
    assert served.peer.frames[3].unmapped.extent_ids == [9]
    view[:4] = b"mine"
    del view
    assert wait_until(lambda: len(served.peer.frames) == 5)
    assert served.peer.frames[4].unmapped.extent_ids == [4]


def test_an_extent_of_another_kind_is_not_acknowledged(start: Start) -> None:
    """An extent of an unsupported kind is not acknowledged, so none of its slots is used."""
    served = Served(start)
    frame = attach_pb2.ServerFrame(extents=attach_pb2.Extents())
    frame.extents.extents.add(extent_id=6, slot_count=1, slot_bytes=64).vmm_fd.size_bytes = 64
    served.announce(frame)
    assert served.peer.came.wait(30)
    assert list(served.peer.frames[2].acknowledge.extent_ids) == []
    assert wait_until(lambda: len(served.peer.frames) == 4)
    assert served.peer.frames[3].unmapped.extent_ids == [6]
    assert served.table.get(6) is None
    why = served.table.refusal([6])
    assert isinstance(why, errors.DeviceUnavailable)
    assert "vmm_fd" in str(why)


def test_host_memory_that_cannot_be_mapped_is_not_acknowledged(start: Start) -> None:
    """An extent too large for the address space is refused, and the connection stays."""
    served = Served(start)
    size = 1 << 47
    frame = extents(6)
    frame.extents.extents[0].host.size_bytes = size
    frame.extents.extents[0].slot_bytes = size
    served.announce(frame, sealed_memfd(size, REQUIRED_SEALS))
    assert served.peer.came.wait(30)
    assert list(served.peer.frames[2].acknowledge.extent_ids) == []
    assert f"mmap of {size} bytes" in str(served.table.refusal([6]))
    assert served.ends.empty()


def test_memory_that_is_not_as_it_should_be_ends_the_connection(start: Start) -> None:
    """An extent without seals ends the session."""
    served = Served(start)
    served.announce(extents(4), sealed_memfd(64, fcntl.F_SEAL_SEAL))
    assert "seals" in str(served.ends.get(timeout=30))
    assert served.table.get(4) is None


def test_a_missing_descriptor_ends_the_connection(start: Start) -> None:
    """An extent without its descriptor ends the session."""
    served = Served(start)
    served.announce(extents(4))
    assert "descriptor" in str(served.ends.get(timeout=30))


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        pytest.param(WELCOME, errors.StoreUnavailable, id="welcome"),
        pytest.param(attach_pb2.ServerFrame(), errors.StoreUnavailable, id="nothing"),
        pytest.param(REFUSED, errors.PeerRefused, id="late refusal"),
    ],
)
def test_a_frame_out_of_place_ends_the_connection(
    start: Start, frame: attach_pb2.ServerFrame, error: type[errors.StoreError]
) -> None:
    """A frame that a bound process does not expect ends the session with a typed error."""
    served = Served(start)
    served.announce(frame)
    assert isinstance(served.ends.get(timeout=30), error)


def test_it_renews_when_it_is_asked(start: Start) -> None:
    """And goes on: such a frame ends nothing."""
    served = Served(start)
    served.announce(attach_pb2.ServerFrame(renew={}))
    served.renewals.get(timeout=30)
    assert served.ends.empty()
    served.connection.close()


def test_a_hang_up_is_told_once(start: Start) -> None:
    """The end of the connection is reported once, even if the client closes it later."""
    served = Served(start)
    served.peer.hang_up()
    assert isinstance(served.ends.get(timeout=30), errors.StoreUnavailable)
    served.connection.close()
    served.connection.close()
    assert served.ends.empty()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_connection(start: Start) -> None:
    """A forked child closes its copy of the socket, so the peer notices the parent's end."""
    peer, connection = start([(WELCOME, ())])
    hello(connection)
    pid = os.fork()
    if pid == 0:
        os._exit(connection._socket.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert connection._socket.fileno() != -1
    assert len(peer.frames) == 1
