"""Holds wait for the device, are released once, and cause a warning if they are lost."""

from collections.abc import Iterator

import pytest

from kvstore.v1 import prefix_cache_pb2
from kvstore_client import errors
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.errors import PageRecycled
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.namespace import Namespace
from kvstore_client.pages.held_pages import Hold, end_holds
from kvstore_client.pages.match import Match, Source
from kvstore_client.pages.reservation import Acquired, Reservation
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceIdentity, NamespaceKey
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from kvstore_client.values.page_runs import PageRef, Pages
from wire.scripted_session import ABORTED, RELEASED, ScriptedSession, matched, run_of
from wire.scripted_store import ScriptedCalls


class Device:
    """A device that counts the waits for it and fails on request."""

    def __init__(self) -> None:
        self.waits = 0
        self.broken = False

    def wait(self) -> None:
        """Counts a wait. Raises ArithmeticError if the device is broken."""
        self.waits += 1
        if self.broken:
            raise ArithmeticError


@pytest.fixture
def device() -> Device:
    """Provides the device that the session waits for."""
    return Device()


@pytest.fixture
def attached(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, device: Device
) -> Iterator[ScriptedSession]:
    """Provides a session whose releases are answered."""
    attached = ScriptedSession(runtime_dir, scripted, wait_for_device=device.wait)
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    yield attached
    attached.close()


def test_holds_end_together_after_one_wait(attached: ScriptedSession, device: Device) -> None:
    """Several holds wait for the device once, and each is released once."""
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
    """Dropping a hold warns but releases nothing, because its pages may be in use."""
    with attached.session.request():
        holds = [Hold(attached.session, pin_ids=(1,))]
    with pytest.warns(ResourceWarning, match=r"\[1\]"):
        holds.clear()
    attached.session.end(errors.ClientClosed("closed"))
    assert not attached.session.drained


class Held:
    """A match of slot 0 with a source in slot 1, and a reservation of slot 2."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.attached = attached
        self.waits = 0
        session, pages = attached.session, Pages(matched(0).runs)
        with session.request():
            pin = Hold(session, pin_ids=(1,), pages=pages)
            source = Hold(session, pin_ids=(2,), pages=Pages([run_of(1)]))
            reservation = Hold(session, reservation_ids=(3,))
        self.source = Source(source, PageRef(3, 1), 2)
        self.match = Match(pin, pages, 4, source=self.source)
        space = OpenedNamespace(b"space", 1, 4)
        granted = Pages([run_of(2)])
        self.reservation = Reservation(reservation, space, 1, granted, StoreBudget(30.0))
        self.acquired = Acquired(self.match, self.reservation)

    def insert(self) -> None:
        """Inserts the reserved page, which was computed on the matched one."""
        self.reservation.insert([1, 2, 3, 4], position=4, base=self.match)


@pytest.fixture
def held(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Held]:
    """Provides held pages, and releases them afterwards."""

    def wait() -> None:
        held.waits += 1

    attached = ScriptedSession(runtime_dir, scripted, wait_for_device=wait)
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    attached.open()
    held = Held(attached)
    yield held
    held.acquired.release()
    attached.close()


def test_pages_that_stay_are_current(held: Held) -> None:
    """Pages stay current while other slots change. The check waits for the device first."""
    held.attached.recycle(3)
    assert (held.match.current, held.source.current, held.acquired.current) == (True, True, True)
    held.acquired.require_current()
    assert held.waits == 1


def test_a_caller_that_has_waited_does_not_wait_again(held: Held) -> None:
    """A caller that has waited may skip the wait, and the pages are still compared."""
    held.acquired.require_current(wait=False)
    held.attached.recycle(0)
    with pytest.raises(PageRecycled):
        held.acquired.require_current(wait=False)
    assert held.waits == 0


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_page_that_was_recycled_is_not_current(held: Held, slot: int) -> None:
    """A recycled page is found and named, whether it is matched, a source or reserved."""
    held.attached.recycle(slot)
    assert held.match.current == (slot == 2)
    assert held.source.current == (slot != 1)
    with pytest.raises(PageRecycled) as found:
        held.acquired.require_current()
    assert found.value.pages == (PageRef(3, slot),)


def test_what_was_given_back_is_nobody_s_to_compare(held: Held) -> None:
    """A source that was released may be recycled without an error."""
    held.source.release()
    held.attached.recycle(1)
    held.acquired.require_current()


@pytest.mark.parametrize("slot", [0, 2])
def test_nothing_is_published_that_was_computed_on_recycled_pages(held: Held, slot: int) -> None:
    """An insert compares its own pages and its base's after waiting for the device."""
    held.attached.recycle(slot)
    with pytest.raises(PageRecycled):
        held.insert()
    assert held.waits == 1
    assert "InsertPrefix" not in held.attached.calls.requests


def test_a_later_insert_remembers_its_base(held: Held) -> None:
    """A later insert also compares the matched pages, because it was computed on them too."""
    answer = prefix_cache_pb2.InsertPrefixResponse(runs=[run_of(2)])
    held.attached.calls.answer("InsertPrefix", answer)
    held.insert()
    held.attached.recycle(0)
    with pytest.raises(PageRecycled):
        held.reservation.insert([5], position=8)
    assert len(held.attached.calls.requests["InsertPrefix"]) == 1


def test_grown_pages_are_compared_too(held: Held) -> None:
    """The new pages of a grown reservation are compared too."""
    grant = prefix_cache_pb2.ReservationGrant(reservation_id=3, runs=[run_of(2, 3)])
    answer = prefix_cache_pb2.ReservePagesResponse(grants=[grant])
    held.attached.calls.answer("ReservePages", answer)
    held.reservation.grow(2)
    held.attached.recycle(3)
    assert not held.acquired.current


def test_growing_forgets_no_page_that_was_recycled(held: Held) -> None:
    """Growing fails if a slot's generation changed, and the reservation keeps its old pages."""
    held.attached.recycle(2)
    grant = prefix_cache_pb2.ReservationGrant(reservation_id=3, runs=[run_of(2, 3)])
    grant.runs[0].generations[0] = 1
    answer = prefix_cache_pb2.ReservePagesResponse(grants=[grant])
    held.attached.calls.answer("ReservePages", answer)
    with pytest.raises(PageRecycled) as found:
        held.reservation.grow(2)
    assert found.value.pages == (PageRef(3, 2),)
    assert held.reservation.page_count == 1
    with pytest.raises(PageRecycled):
        held.insert()


def test_who_only_copies_held_pages_looks_at_them_by_their_runs(held: Held) -> None:
    """A process with a joined lease compares pages by their runs, if it has a session."""

    class Attached:
        session = held.attached.session

        def want(self, key: NamespaceKey) -> None:
            assert key.layout == layout

        def check_process(self) -> None:
            held.attached.session.check_process()

    connector = Attached()
    layout = PageLayout(4, 8, OpaqueContent(b"any"))
    memory = Namespace(connector, NamespaceKey(NamespaceIdentity(b""), layout))  # type: ignore[arg-type]
    runs = Pages([run_of(0), run_of(2)]).dated_runs
    assert memory.recycled(runs) == []
    held.attached.recycle(2)
    assert memory.recycled(runs) == [PageRef(3, 2)]
    connector.session = None  # type: ignore[assignment]
    assert memory.recycled(runs) == [PageRef(3, 0), PageRef(3, 2)]
