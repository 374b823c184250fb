"""What is held: waits for the device, is given back once, and is missed when it is lost."""

from collections.abc import Iterator

import pytest

from kvstore_client import errors
from kvstore_client.hold import Hold, end_holds
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_session import ABORTED, RELEASED, ScriptedSession
from wire.scripted_store import ScriptedCalls


class Device:
    """Counts the waits, and fails where it is told to."""

    def __init__(self) -> None:
        self.waits = 0
        self.broken = False

    def wait(self) -> None:
        """Waits, or raises."""
        self.waits += 1
        if self.broken:
            raise ArithmeticError


@pytest.fixture
def device() -> Device:
    """The device that is waited for."""
    return Device()


@pytest.fixture
def attached(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, device: Device
) -> Iterator[ScriptedSession]:
    """A session whose releases are answered."""
    attached = ScriptedSession(runtime_dir, scripted, wait_for_device=device.wait)
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    yield attached
    attached.close()


def test_holds_end_together_after_one_wait(attached: ScriptedSession, device: Device) -> None:
    """Several holds wait for the device once, and each is given back once."""
    with attached.session.request():
        pin = Hold(attached.session, pin_ids=(1,))
        reservation = Hold(attached.session, reservation_ids=(2,))
    attached.session.end(errors.ClientClosed("closed"))
    assert not attached.session.drained
    for _ in range(2):
        end_holds(pin, reservation)
    assert (device.waits, pin.open, reservation.open) == (1, False, False)
    assert attached.session.drained
    assert attached.session.flush(30)
    assert len(attached.calls.requests["ReleasePins"]) == 1
    assert len(attached.calls.requests["AbortReservation"]) == 1


def test_where_the_device_fails_nothing_ends(attached: ScriptedSession, device: Device) -> None:
    """A failed wait is raised, and the pages stay held."""
    with attached.session.request():
        hold = Hold(attached.session, pin_ids=(1,))
    attached.session.end(errors.ClientClosed("closed"))
    device.broken = True
    with pytest.raises(ArithmeticError):
        end_holds(hold)
    assert (hold.open, attached.session.drained) == (True, False)
    assert attached.session.flush(30)
    assert "ReleasePins" not in attached.calls.requests
    device.broken = False
    end_holds(hold)


def test_a_hold_that_is_lost_is_warned_of(attached: ScriptedSession) -> None:
    """Dropping a hold gives nothing back, for its pages may be in use, and says so."""
    with attached.session.request():
        holds = [Hold(attached.session, pin_ids=(1,))]
    with pytest.warns(ResourceWarning, match=r"\[1\]"):
        holds.clear()
    attached.session.end(errors.ClientClosed("closed"))
    assert not attached.session.drained
