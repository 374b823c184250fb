"""Fixtures of the client's unit tests: a folder short enough for sockets, and scripted peers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client.runtime_dir import RuntimeDir
from wire.lane_rig import LaneRig
from wire.scripted_session import ABORTED, RELEASED, ScriptedSession
from wire.scripted_store import ScriptedCalls
from wire.sending import Sending


@pytest.fixture
def runtime_dir() -> Iterator[RuntimeDir]:
    """Provides a folder for sockets, and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        yield RuntimeDir(Path(folder))


@pytest.fixture
def scripted(runtime_dir: RuntimeDir) -> Iterator[ScriptedCalls]:
    """Provides a gRPC server that gives the answers that the test sets."""
    calls = ScriptedCalls(runtime_dir.path / "kvstore.sock")
    yield calls
    calls.close()


@pytest.fixture
def releases_answered(scripted: ScriptedCalls) -> None:
    """Answers releases of pins and of a reservation."""
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)


@pytest.fixture
def sending(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Sending]:
    """Provides a sender with a scripted store, and ends it afterwards."""
    assert scripted.requests == {}
    sending = Sending(runtime_dir)
    yield sending
    sending.sender.abandon()
    sending.calls.close()
    assert sending.sender.join(30)


@pytest.fixture
def attached(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[ScriptedSession]:
    """Provides an attached session with long timeouts and no namespace yet."""
    attached = ScriptedSession(runtime_dir, scripted)
    yield attached
    attached.close()


@pytest.fixture
def rig(runtime_dir: RuntimeDir) -> Iterator[LaneRig]:
    """Provides lanes to a scripted socket, and closes them afterwards."""
    made = LaneRig(runtime_dir)
    yield made
    made.lanes.close()
    made.store.close()
