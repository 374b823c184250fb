"""A suspended session, and attempts to resume it, against scripted sockets."""

import os
from collections.abc import Iterator

import grpc
import pytest

from kvstore.v1 import attach_pb2, prefix_cache_pb2
from kvstore_client import errors
from kvstore_client.lifecycle.reattachment import Reattachment
from kvstore_client.lifecycle.session import Session
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from wire.scripted_session import (
    BOUND,
    CAPABILITIES,
    EPOCH,
    EXTENT_ID,
    RELEASED,
    RENEWED,
    WELCOME,
    ScriptedSession,
    match,
    matched,
)
from wire.scripted_store import Answer, ScriptedAttach, ScriptedCalls, refusal

KEPT = attach_pb2.ServerFrame(bound=attach_pb2.Bound(pid=7, kept_extent_ids=[EXTENT_ID]))
MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(0))


class Outliving:
    """A session whose store outlives its server, and the servers that follow."""

    def __init__(self, runtime_dir: RuntimeDir, scripted: ScriptedCalls) -> None:
        self.path = runtime_dir.attach_socket
        self.attached = ScriptedSession(runtime_dir, scripted, outlives=True)
        self.session: Session = self.attached.open()
        self.calls = scripted
        self._runtime_dir = runtime_dir
        self._servers: list[ScriptedAttach] = []

    def lose(self) -> None:
        """Ends the attach connection, and waits until the session is suspended."""
        self.attached.attach.hang_up()
        assert wait_until(lambda: self.session.suspended is not None)

    def next_server(self, *answers: Answer) -> ScriptedAttach:
        """Replaces the attach socket by one with these answers to Hello and Bind."""
        self.path.unlink()
        self._servers.append(ScriptedAttach(self.path, *([each] for each in answers)))
        return self._servers[-1]

    def resume(self) -> None:
        """Makes one attempt to resume the session."""
        Reattachment(self._runtime_dir, self.attached.config, self.session).run()

    def close(self) -> None:
        """Ends the session and all sockets."""
        for each in self._servers:
            each.hang_up()
        self.attached.close()
        for each in self._servers:
            each.close()


@pytest.fixture
def outliving(runtime_dir: RuntimeDir, scripted: ScriptedCalls) -> Iterator[Outliving]:
    """Provides a session with one mapped extent."""
    made = Outliving(runtime_dir, scripted)
    yield made
    made.close()


def test_a_session_is_resumed_with_its_extents(outliving: Outliving) -> None:
    """Bind names each mapped extent with its memory, and the session is usable afterwards."""
    outliving.lose()
    peer = outliving.next_server((WELCOME, ()), (KEPT, ()))
    outliving.calls.answer("GetCapabilities", CAPABILITIES)
    outliving.calls.answer("RenewLease", RENEWED)
    outliving.resume()
    [mapped] = peer.frames[1].bind.mapped
    status = os.fstat(outliving.attached.memory)
    assert (mapped.extent_id, mapped.size_bytes) == (EXTENT_ID, status.st_size)
    assert (mapped.device, mapped.inode) == (status.st_dev, status.st_ino)
    assert outliving.session.usable
    outliving.calls.answer("MatchPrefix", MATCH)
    match(outliving.session, 1)


def test_extents_with_other_memory_end_the_session(outliving: Outliving) -> None:
    """A session whose extent the store did not keep ends, and its memory stays mapped."""
    outliving.lose()
    outliving.next_server((WELCOME, ()), (BOUND, ()))
    outliving.resume()
    assert f"the store lost extents [{EXTENT_ID}]" in str(outliving.session.ended)
    assert outliving.session.extents.get(EXTENT_ID) is not None


def test_another_epoch_is_the_end(outliving: Outliving) -> None:
    """A store of another epoch is not asked to bind."""
    outliving.lose()
    other = attach_pb2.Welcome(credential="c", store_epoch=EPOCH + 1, outlives=True)
    peer = outliving.next_server((attach_pb2.ServerFrame(welcome=other), ()))
    with pytest.raises(errors.StaleEpoch):
        outliving.resume()
    assert len(peer.frames) == 1


def test_an_attempt_that_fails_changes_nothing(outliving: Outliving) -> None:
    """A server that does not answer over gRPC yet leaves the session suspended, for a retry."""
    outliving.lose()
    outliving.next_server((WELCOME, ()), (KEPT, ()))
    outliving.calls.answer("GetCapabilities", grpc.StatusCode.UNAVAILABLE, CAPABILITIES)
    with pytest.raises(errors.StoreUnavailable):
        outliving.resume()
    assert outliving.session.suspended is not None
    outliving.next_server((WELCOME, ()), (KEPT, ()))
    outliving.resume()
    assert outliving.session.usable


def test_an_ended_session_is_not_resumed(outliving: Outliving) -> None:
    """A session that ended meanwhile stays ended, and the new connection is closed."""
    outliving.lose()
    outliving.session.end(errors.StoreUnavailable("over"))
    outliving.next_server((WELCOME, ()), (KEPT, ()))
    outliving.calls.answer("GetCapabilities", CAPABILITIES)
    outliving.resume()
    assert not outliving.session.usable
    assert str(outliving.session.ended) == "over"


def test_an_aborted_attempt_fails(outliving: Outliving) -> None:
    """An attempt that was aborted fails without a call."""
    outliving.lose()
    peer = outliving.next_server((WELCOME, ()), (KEPT, ()))
    attempt = Reattachment(outliving._runtime_dir, outliving.attached.config, outliving.session)
    attempt.abort()
    with pytest.raises(errors.StoreUnavailable):
        attempt.run()
    assert peer.frames == []


def test_not_attached_is_a_miss_until_this_process_is(outliving: Outliving) -> None:
    """A server that does not know this process yet suspends the session, and the ids go back."""
    outliving.calls.answer("MatchPrefix", refusal("NOT_ATTACHED"))
    outliving.calls.answer("ReleasePins", RELEASED)
    with pytest.raises(errors.StoreUnavailable, match="attached again"):
        match(outliving.session, 1)
    assert wait_until(lambda: outliving.session.suspended is not None)
    assert outliving.session.ended is None
    assert outliving.session.flush(30)
    [request] = outliving.calls.requests["ReleasePins"]
    assert prefix_cache_pb2.ReleasePinsRequest.FromString(request).pin_ids == [1]


def test_a_device_s_memory_ends_with_its_server(outliving: Outliving) -> None:
    """A session with memory of a device ends with its connection."""
    extent = outliving.session.extents.get(EXTENT_ID)
    assert extent is not None
    extent.identity = None
    outliving.attached.attach.hang_up()
    assert wait_until(lambda: outliving.session.ended is not None)
    assert outliving.session.suspended is None
    assert type(outliving.session.ended) is errors.StoreUnavailable
