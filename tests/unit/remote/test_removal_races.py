"""Races of removals with what threads of the remote store still do for earlier ones."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread

import pytest
from page_stores.numbered_pages import LIMIT, NAMESPACE, key

from kvstore.remote.history.journal import JournalEntry
from remote.hosts import Hosts, RemoteHost

# The time for something that a fault would do.
SOON = 1.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    """Provides a host."""
    made = RemoteHost(tmp_path)
    yield made
    made.close()


def test_a_removal_is_not_answered_by_the_one_before(host: RemoteHost) -> None:
    """It came while the host noted on its disk that the engine has the earlier one."""
    host.publish(0)
    journal = host.store._removals._journal
    save, second = journal.save, Future[bool]()

    def begin_another(namespace: bytes, entry: JournalEntry) -> bool:
        if not entry.is_owed and not second.running() and not second.done():
            second.set_running_or_notify_cancel()
            host.engine.set(is_hung=True, hangs=lambda call: call == "set_control")
            asked = (NAMESPACE, second.set_result)
            Thread(target=host.store.remove_namespace, args=asked, daemon=True).start()
            host.until(lambda: host.store.remote_use().removals_pending or second.done())
        return save(namespace, entry)

    journal.save = begin_another  # type: ignore[method-assign]
    assert host.pages.remove(0)
    host.until(lambda: host.engine.calls[-1] == "set_control")
    assert not second.done(), "a removal is answered before the engine has it"
    host.let_go()
    assert second.result(LIMIT)


def test_a_removal_that_is_owed_stays_in_the_journal(tmp_path: Path) -> None:
    """The host writes down, a little later, that it heard of an earlier one by another host."""
    two = Hosts(tmp_path)
    two.a.publish(0)
    assert two.b.look(0) == 1
    assert two.a.pages.remove(0)
    journal = two.b.store._removals._journal
    save, waits, is_owed = journal.save, Event(), Event()

    def save_late(namespace: bytes, entry: JournalEntry) -> bool:
        if not entry.is_owed and not waits.is_set():
            waits.set()
            # The removal is written before this, or has to wait for it.
            is_owed.wait(SOON)
            return save(namespace, entry)
        saved = save(namespace, entry)
        is_owed.set()
        return saved

    journal.save = save_late  # type: ignore[method-assign]
    assert two.b.look(0) == 0
    assert waits.wait(LIMIT)
    two.b.engine.set(is_hung=True, hangs=lambda call: call == "set_control")
    gone: Future[bool] = Future()
    two.b.store.remove([key(0)], gone.set_result)
    two.b.until(lambda: two.b.engine.calls[-1] == "set_control")
    two.b.until(lambda: not two.b.store._reviser._due._busy)
    assert journal.load(NAMESPACE).is_owed, "a crash now would forget the removal"
    two.b.let_go()
    assert gone.result(LIMIT)
    two.close()


def test_a_crash_during_a_stall_forgets_no_removal(host: RemoteHost) -> None:
    """All threads wait for a hung engine with the removals before it."""
    namespaces = [bytes([number]) * 32 for number in range(3)]
    host.engine.set(is_hung=True)
    for each in namespaces:
        host.store.remove_namespace(each, lambda _: None)
    journal = host.store._removals._journal
    owed = [journal.load(each).is_owed for each in namespaces]
    assert owed == [True] * 3
