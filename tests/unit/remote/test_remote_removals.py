"""Removals from the remote store: nothing that a host removed returns, whatever the engine does.

The names in parentheses are those of the attack on the design that each test repeats.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from page_stores.numbered_pages import LIMIT, NAMESPACE, key
from page_stores.remote_rig import SETTINGS, wait_until

from kvstore.remote.errors import EngineUnreachable
from kvstore.remote.history import removals
from kvstore.remote.history.remote_namespaces import NamespaceRecord
from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.secret.revisions import Revision
from kvstore.storage.page_store import PageKey, ReadAnswer
from mutants.live import put_into_this_process
from mutants.remote import REMOTE_MUTANTS
from remote.hosts import Hosts, RemoteHost

# The time for something that a fault prevents.
SOON = 5.0
OTHER = bytes(range(32))
MUTANTS = {each.name: each for each in REMOTE_MUTANTS}


# A control write may wait for a test.
# A page that is being sent makes all others wait.
ONE_WRITER = replace(SETTINGS, write_threads=1)
PATIENT = replace(SETTINGS, timeout_seconds=LIMIT)


@contextmanager
def hosts(folder: Path, settings: RemoteSettings = SETTINGS) -> Iterator[Hosts]:
    """Provides two hosts."""
    made = Hosts(folder, settings=settings)
    try:
        yield made
    finally:
        made.close()


def other_hosts_do_not_write_removed_pages_back(folder: Path) -> None:
    """A removes; B has the page in memory and writes it; A looks (A1)."""
    with hosts(folder) as two:
        two.a.publish(0, 1)
        assert two.b.look(0, 1) == 2
        assert two.a.pages.remove(0)
        begun = two.b.pages.begin(0)
        assert begun is None or not begun.result(LIMIT), "a page of before the removal is written"
        assert two.a.look(0) == 0
        two.b.settle()
        assert two.b.heard == [NAMESPACE]
        assert two.a.look(0) == 0
        # Computed anew, it is a page of the new revision.
        two.b.publish(0)
        assert two.a.look(0) == 1


def a_restart_does_not_let_removed_pages_return(folder: Path) -> None:
    """B is told of A's removal, fails to remove its pages, and starts again (A1)."""
    with hosts(folder) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        assert two.a.pages.remove(0)
        failed: list[bytes] = []

        def fail(namespace: bytes) -> None:
            failed.append(namespace)
            raise OSError("the disk does not answer")

        two.b.store.revised = fail
        assert two.b.look(0) == 0
        two.b.until(lambda: failed)
        assert two.b.pages.begin(0) is None, "a page is accepted before the host has heard"
        two.b.reopen()
        assert two.b.look(0) == 0
        wait_until(lambda: two.b.heard, SOON)
        two.b.settle()
        assert two.b.heard == [NAMESPACE], "a host forgot that it has not heard"
        two.b.publish(5)
        two.b.reopen()
        two.b.publish(6)
        assert two.b.heard == [NAMESPACE], "a host hears of a removal twice"


def a_page_waits_while_its_namespace_is_removed(folder: Path) -> None:
    """It was submitted before the removal, and is sent after it (A2)."""
    with hosts(folder, ONE_WRITER) as two:
        two.a.publish(0)
        two.a.publish(0, namespace=OTHER)
        two.a.engine.set(is_hung=True, hangs=lambda call: call == "put_many")
        blocking = two.a.pages.begin(1, 0, namespace=OTHER)
        waiting = two.a.pages.begin(1, 0)
        assert blocking is not None
        assert waiting is not None
        two.a.until(lambda: "put_many" in two.a.engine.calls[-1:])
        assert two.a.pages.remove(0)
        two.a.let_go()
        assert blocking.result(LIMIT)
        assert not waiting.result(LIMIT)
        two.a.settle()
        two.b.settle()
        assert [two.a.finds(1), two.b.finds(1)] == [[], []], "a queued page outlives a removal"


def a_page_waits_while_another_host_removes(folder: Path) -> None:
    """It was submitted under the revision of before, by a host that has not heard (A2)."""
    with hosts(folder, ONE_WRITER) as two:
        two.a.publish(0)
        two.a.publish(0, namespace=OTHER)
        assert two.b.look(0) == 1
        two.a.hold()
        blocking = two.a.pages.begin(1, 0, namespace=OTHER)
        waiting = two.a.pages.begin(1, 0)
        assert blocking is not None
        assert waiting is not None
        assert two.b.pages.remove(0)
        two.a.let_go()
        assert blocking.result(LIMIT)
        assert not waiting.result(LIMIT), "a page is said to be stored that nobody finds"
        two.a.settle()
        assert two.a.heard == [NAMESPACE]
        assert two.b.finds(1) == []


def an_old_revision_comes_back(folder: Path) -> None:
    """A failover or a backup brings the revision of before back, with its pages (A3)."""
    with hosts(folder) as two:
        two.a.publish(0, 1)
        assert two.b.look(0, 1) == 2
        before = dict(two.values)
        assert two.a.pages.remove(0)
        two.b.look(0)
        two.b.until(lambda: two.b.heard)
        two.b.settle()
        two.restore(before)
        assert two.a.look(0, 1) == 0
        assert two.b.look(0, 1) == 0
        two.a.settle()
        two.b.settle()
        assert [two.a.look(0, 1), two.b.look(0, 1)] == [0, 0], "a removed page is found"
        assert [two.a.finds(0, 1), two.b.finds(0, 1)] == [[], []], "a removed page is read"


def an_idle_host_restores_its_removals(folder: Path) -> None:
    """B never heard of the removal. A repeats it when its line is back, without a look (A3)."""
    with hosts(folder) as two:
        two.a.publish(0)
        before = dict(two.values)
        assert two.a.pages.remove(0)
        two.a.go_away()
        two.restore(before)
        two.a.come_back()
        two.a.settle()
        assert two.b.look(0) == 0, "a host that never heard of it finds a removed page"


def a_removal_between_the_look_and_the_last_page(folder: Path) -> None:
    """B has found and is reading the pages when A removes them (A4)."""
    with hosts(folder) as two:
        two.a.publish(0, 1, 2)
        assert two.b.look(0, 1, 2) == 3
        two.b.hold()
        answer, _ = two.b.pages.begin_read(0, 1, 2)
        two.b.until(lambda: "get_many" in two.b.engine.calls)
        assert two.a.pages.remove(0)
        two.b.let_go()
        assert answer.result(LIMIT).leading == 0, "pages of before a removal are published"


def a_removal_outlives_its_host(folder: Path) -> None:
    """A removes while the engine is away, and starts again before it is back (A7)."""
    with hosts(folder) as two:
        two.a.publish(0)
        two.a.go_away()
        gone: Future[bool] = Future()
        two.a.store.remove([key(0)], gone.set_result)
        two.a.store.close()
        assert not gone.result(LIMIT)
        two.a.open()
        two.a.settle()
        assert [two.a.look(0), two.b.look(0)] == [0, 0], "a removed page is found after a restart"
        assert [two.a.finds(0), two.b.finds(0)] == [[], []]


def two_hosts_remove_at_a_time(folder: Path) -> None:
    """Each writes over the other's revision, and each hears of the other's removal."""
    with hosts(folder) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        two.b.publish(1)
        # B reads the revisions before A writes its own, and writes after it.
        is_past, may_go_on = Event(), Event()
        write = two.b.engine.set_control

        def wait(*parts: object, **how: object) -> bool:
            if not is_past.is_set():
                is_past.set()
                assert may_go_on.wait(LIMIT)
            return write(*parts, **how)  # type: ignore[arg-type]

        two.b.engine.set_control = wait  # type: ignore[method-assign]
        by_b: Future[bool] = Future()
        two.b.store.remove([key(1)], by_b.set_result)
        assert is_past.wait(LIMIT)
        assert two.a.pages.remove(0)
        may_go_on.set()
        assert by_b.result(LIMIT)
        two.a.look(0)
        two.b.look(0)
        two.a.until(lambda: two.a.heard and two.b.heard)
        two.a.settle()
        two.b.settle()
        assert [two.a.look(0), two.b.look(0)] == [0, 0]


def overwritten_while_it_is_written(folder: Path) -> None:
    """Another host's revision takes the place of one that was just written."""
    with hosts(folder) as two:
        two.a.publish(0)
        before = dict(two.values)
        read = two.a.engine.get_many
        writes = iter(range(1000))

        def restore(*parts: object) -> object:
            # After the first writing of all, the engine has the values of before.
            if two.a.engine.calls.count("set_control") >= 64 and next(writes) == 0:
                two.restore(before)
            return read(*parts)  # type: ignore[arg-type]

        two.a.engine.get_many = restore  # type: ignore[method-assign,assignment]
        assert two.a.pages.remove(0)
        assert two.b.look(0) == 0, "a removal is acknowledged that the engine has lost"


def _before_a_write(host: RemoteHost, number: int) -> tuple[Event, Event]:
    """Makes a host wait before a control write. Returns the events that it does, and may go on."""
    is_past, may_go_on = Event(), Event()
    write, numbers = host.engine.set_control, iter(range(1_000_000))

    def wait(*parts: object, **how: object) -> bool:
        if next(numbers) == number:
            is_past.set()
            assert may_go_on.wait(LIMIT)
        return write(*parts, **how)  # type: ignore[arg-type]

    host.engine.set_control = wait  # type: ignore[method-assign]
    return is_past, may_go_on


def _write_over(folder: Path, number: int) -> None:
    """A has read the revisions, and writes some of them after B's removal was answered.

    A has pages that B removed, and must hear of it although B does nothing more.
    """
    with hosts(folder, PATIENT) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        is_past, may_go_on = _before_a_write(two.a, number)
        by_a: Future[bool] = Future()
        two.a.store.remove([key(1)], by_a.set_result)
        assert is_past.wait(LIMIT)
        assert two.b.pages.remove(0)
        may_go_on.set()
        assert by_a.result(LIMIT)
        two.a.settle()
        assert two.a.heard == [NAMESPACE], "a removal is written over, and its pages stay"


def all_of_a_removal_is_written_over(folder: Path) -> None:
    """A writes its first revision after B's removal."""
    _write_over(folder, 0)


def half_of_a_removal_is_written_over(folder: Path) -> None:
    """A writes the second half of its revisions after B's removal."""
    _write_over(folder, 32)


def a_removal_is_tried_again(folder: Path) -> None:
    """A has not heard of B's removal when it writes its own, and cannot read that again."""
    with hosts(folder) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        assert two.b.pages.remove(0)
        read, fails = two.a.engine.get_many, iter([True])
        before = two.a.engine.calls.count("set_control")

        def fail(*parts: object) -> object:
            is_written = two.a.engine.calls.count("set_control") == before + 64
            if is_written and next(fails, False):
                raise EngineUnreachable("a test cut the line")
            return read(*parts)  # type: ignore[arg-type]

        two.a.engine.get_many = fail  # type: ignore[method-assign,assignment]
        assert two.a.pages.remove(1)
        assert next(fails, None) is None, "the line was not cut"
        two.a.settle()
        assert two.a.heard == [NAMESPACE], "pages that another host removed stay"


def a_repeat_writes_over_a_later_removal(folder: Path) -> None:
    """A repeats a removal that the engine forgot, at the moment of one by B.

    A must hear of B's although B does nothing more.
    """
    with hosts(folder, PATIENT) as two:
        two.a.publish(0)
        assert two.a.pages.remove(0)
        before = _controls(two)
        assert two.a.pages.remove(0)
        two.b.publish(1)
        assert two.a.look(1) == 1
        # A replica without the last control values is promoted.
        two.values.update(before)
        is_past, may_go_on = _before_a_write(two.a, 0)
        assert two.a.look(1) == 0
        assert is_past.wait(LIMIT)
        assert two.b.pages.remove(1)
        may_go_on.set()
        two.a.settle()
        assert two.a.look(1) == 0, "a repeated revision brings removed pages back"
        two.a.settle()
        assert two.a.heard, "a removal is written over, and its pages stay"
        assert [two.a.look(1), two.b.look(1)] == [0, 0]


def _controls(two: Hosts) -> dict[bytes, tuple[bytes, int]]:
    """Returns the control values of the engine."""
    return {name: each for name, each in two.values.items() if name.startswith(b"kvr/")}


def a_store_starts_after_a_removal(folder: Path) -> None:
    """B removed pages once, and A others while B was down. B's store comes after its page store."""
    with hosts(folder) as two:
        two.b.publish(0)
        assert two.b.pages.remove(0)
        two.b.store.close()
        two.a.publish(1)
        assert two.a.pages.remove(1)
        two.b.hears = False
        two.b.open()
        two.b.until(lambda: "get_many" in two.b.engine.calls)
        removals, reviser = two.b.store._removals._due, two.b.store._reviser._due
        two.b.until(lambda: not (removals._due or removals._busy))
        two.b.until(lambda: not (reviser._due or reviser._busy))
        two.b.store.revised = two.b.heard.append
        two.b.settle()
        assert two.b.heard == [NAMESPACE], "nobody heard of a removal"


SCENARIOS: dict[Callable[[Path], None], list[str]] = {
    other_hosts_do_not_write_removed_pages_back: ["births-not-compared"],
    a_restart_does_not_let_removed_pages_return: ["known-before-heard"],
    a_page_waits_while_its_namespace_is_removed: [],
    a_page_waits_while_another_host_removes: ["revision-cached-for-ever"],
    an_old_revision_comes_back: ["earlier-revision-accepted"],
    an_idle_host_restores_its_removals: ["removals-not-repeated"],
    a_removal_between_the_look_and_the_last_page: ["no-second-revision"],
    a_removal_outlives_its_host: ["removal-not-in-the-journal"],
    two_hosts_remove_at_a_time: [],
    overwritten_while_it_is_written: ["overwritten-removal-accepted"],
    all_of_a_removal_is_written_over: ["second-half-not-read"],
    half_of_a_removal_is_written_over: ["later-removal-not-heard"],
    a_removal_is_tried_again: ["unheard-forgotten-by-a-failure"],
    a_store_starts_after_a_removal: ["heard-by-nobody"],
    a_repeat_writes_over_a_later_removal: ["crossed-repeat-not-removed"],
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_nothing_that_was_removed_returns(tmp_path: Path, scenario: Callable[[Path], None]) -> None:
    """It is neither found nor read, on either host."""
    scenario(tmp_path)


@pytest.mark.parametrize(
    ("scenario", "name"),
    [(scenario, name) for scenario, names in SCENARIOS.items() for name in names],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_fault_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[Path], None],
    name: str,
) -> None:
    """The scenario fails with the fault."""
    put_into_this_process(monkeypatch, MUTANTS[name])
    with pytest.raises(AssertionError):
        scenario(tmp_path)


def test_a_revision_of_the_send_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three things keep a queued page from outliving a removal. Without all, it does (A2)."""
    names = ("queue-not-emptied", "epoch-of-the-send", "revision-read-at-send-alone")
    put_into_this_process(monkeypatch, *(MUTANTS[each] for each in names))
    with pytest.raises(AssertionError):
        a_page_waits_while_its_namespace_is_removed(tmp_path)


def test_a_revision_that_is_repeated_as_it_was_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages that another host removed since are found under it again."""
    names = ("known-revision-repeated", "crossed-repeat-not-removed")
    put_into_this_process(monkeypatch, *(MUTANTS[each] for each in names))
    with pytest.raises(AssertionError, match="brings removed pages back"):
        a_repeat_writes_over_a_later_removal(tmp_path)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    """Provides one host."""
    made = RemoteHost(tmp_path)
    yield made
    made.close()


def test_a_lost_revision_is_no_removal(tmp_path: Path) -> None:
    """The old pages are unreachable, and no host drops what it has (A9)."""
    with hosts(tmp_path) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        for name in [each for each in two.values if each.startswith(b"kvr/")]:
            two.a.engine.evict(name)
        assert [two.b.look(0), two.a.look(0)] == [0, 0]
        two.a.publish(0)
        assert [two.b.look(0), two.a.look(0)] == [1, 1]
        assert [two.a.heard, two.b.heard] == [[], []]
        lost = [each.store.remote_use().revisions_lost for each in (two.a, two.b)]
        assert sum(lost) == 1


def test_a_forged_revision_is_replaced(tmp_path: Path) -> None:
    """Nobody without the secret can set a revision; pages of before are unreachable (A10)."""
    with hosts(tmp_path) as two:
        two.a.publish(0)
        [name] = [each for each in two.values if each.startswith(b"kvr/")]
        two.values[name] = b"\1" * len(two.values[name][0]), two.values[name][1]
        assert two.b.look(0) == 0
        two.b.publish(0)
        assert [two.b.look(0), two.a.look(0)] == [1, 1]
        assert two.b.store.remote_use().revisions_forged == 1
        assert two.a.heard == []


def test_a_removal_is_pending_until_the_engine_has_it(host: RemoteHost) -> None:
    """It is counted, and nothing of the namespace is found or written meanwhile (A7)."""
    host.publish(0)
    host.publish(0, namespace=OTHER)
    host.engine.set(is_hung=True, hangs=lambda call: call == "set_control")
    gone: Future[bool] = Future()
    host.store.remove([key(0)], gone.set_result)
    assert host.store.remote_use().removals_pending == 1
    assert [host.look(0), host.look(0, namespace=OTHER)] == [0, 1]
    assert host.pages.begin(1, 0) is None
    host.let_go()
    assert gone.result(LIMIT)
    assert host.store.remote_use().removals_pending == 0
    host.publish(1)


def test_removals_of_fifty_namespaces_take_seconds(host: RemoteHost) -> None:
    """Several are carried out at a time, each in few trips."""
    namespaces = [bytes([number]) * 32 for number in range(50)]
    began = monotonic()
    gone: Future[bool] = Future()
    host.store.remove([PageKey(each, each) for each in namespaces], gone.set_result)
    assert gone.result(LIMIT)
    assert monotonic() - began < LIMIT / 2
    assert host.engine.calls.count("set_control") == 50 * 64


def test_a_removal_by_another_host_is_heard_once(tmp_path: Path) -> None:
    """Not for each of the shards that it changed."""
    with hosts(tmp_path) as two:
        paths = [PageKey(NAMESPACE, bytes([each]) * 32, bytes([each]) * 32) for each in range(40)]
        two.a.store.look(paths, monotonic() + LIMIT)
        two.b.store.there(paths)
        assert two.a.pages.remove(0)
        two.b.store.there(paths)
        two.b.until(lambda: two.b.heard)
        two.b.settle()
        two.b.store.there(paths)
        assert two.b.heard == [NAMESPACE]


def test_nothing_is_found_until_the_store_has_heard(tmp_path: Path) -> None:
    """Neither what another host wrote anew nor what this one would write (A1)."""
    with hosts(tmp_path) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        assert two.a.pages.remove(0)
        two.a.publish(0)
        begins, may_return = Event(), Event()

        def hear(_: bytes) -> None:
            begins.set()
            assert may_return.wait(LIMIT)

        two.b.store.revised = hear
        assert two.b.look(0) == 0
        assert begins.wait(LIMIT)
        assert two.b.look(0) == 0
        assert two.b.finds(0) == []
        assert two.b.pages.begin(1, 0) is None
        may_return.set()
        two.b.settle()
        assert two.b.look(0) == 1


def test_an_own_removal_is_repeated_though_it_crossed_a_hearing(tmp_path: Path) -> None:
    """The listener had read the revisions before this host's own removal wrote later ones."""
    with hosts(tmp_path, PATIENT) as two:
        two.a.publish(0)
        assert two.b.look(0) == 1
        assert two.a.pages.remove(0)
        two.a.publish(0)
        before = dict(two.values)
        begins, may_return = Event(), Event()

        def hear(_: bytes) -> None:
            begins.set()
            assert may_return.wait(LIMIT)

        # It has seen the other host's removal, and waits with its own.
        two.b.engine.set(is_hung=True, hangs=lambda call: call == "set_control")
        removed: Future[bool] = Future()
        two.b.store.remove_namespace(NAMESPACE, removed.set_result)
        with two.b.store._namespaces.record(NAMESPACE) as record:
            pass
        two.b.until(lambda: record.is_unheard)
        two.b.store.revised = hear
        assert begins.wait(LIMIT)
        two.b.engine.set(is_hung=False)
        assert removed.result(LIMIT)
        may_return.set()
        two.b.settle()
        # The engine fails over to a replica that lacks the removal.
        two.restore(before)
        assert two.b.look(0) == 0, "a removed page returned"
        two.b.settle()
        assert two.b.look(0) == 0


def test_an_old_value_of_the_journal_counts_for_nothing(host: RemoteHost, tmp_path: Path) -> None:
    """A damaged file is as none: the host hears of all removals again."""
    host.publish(0)
    assert host.pages.remove(0)
    host.store.close()
    [file] = (tmp_path / "state").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    host.open()
    host.look(0)
    host.until(lambda: host.heard)
    host.settle()
    assert host.heard == [NAMESPACE]


def test_a_jump_of_the_clock_forgets_no_removal(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the host serves nor at its next start. The engine's clock counts."""
    host.publish(0)
    before = dict(host.values)
    assert host.pages.remove(0)
    real = time.time

    def keep_the_engine() -> None:
        host.engine._now_ms = lambda: int(real() * 1000)  # type: ignore[method-assign]

    keep_the_engine()
    monkeypatch.setattr(time, "time", lambda: real() + 100 * 86_400)
    host.store._removals.check_oldest()
    host.store.close()
    host.open()
    keep_the_engine()
    host.until(lambda: host.engine.calls.count("time_ms"))
    host.store._engine_clock.set(int(real() * 1000))
    host.store._removals.check_oldest()
    host.settle()
    with host.store._namespaces.record(NAMESPACE) as record:
        assert record.removed_at
    host.values.clear()
    host.values.update(before)
    host.store._removals.check_oldest()
    assert host.look(0) == 0
    host.settle()
    assert host.look(0) == 0
    # The engine has none of the pages by then, and the file does not name the removal any more.
    host.store._engine_clock.set(int((real() + 2 * 86_400) * 1000))
    host.store._removals.check_oldest()
    with host.store._namespaces.record(NAMESPACE) as record:
        assert not record.removed_at
    assert not host.store._removals._journal.load(NAMESPACE).removed_at


def test_a_minute_compares_a_bounded_number_of_own_removals(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those first that waited longest, so all have their turn. A failure compares all at once."""
    monkeypatch.setattr(removals, "MOST_A_MINUTE", 3)
    namespaces = [bytes([number]) * 32 for number in range(8)]
    # The store's own check of the first minute.
    host.until(lambda: host.engine.calls.count("time_ms"))
    gone: Future[bool] = Future()
    host.store.remove([PageKey(each, b"") for each in namespaces], gone.set_result)
    assert gone.result(LIMIT)
    compared: list[bytes] = []
    repeat = host.store._removals._repeat

    def note(record: NamespaceRecord, known: Mapping[int, Revision]) -> None:
        repeat(record, known)
        compared.append(record.digest)

    monkeypatch.setattr(host.store._removals, "_repeat", note)
    for minute in range(1, 7):
        host.store._removals.check_oldest()
        host.until(lambda minute=minute: len(compared) == 3 * minute)  # type: ignore[misc]
    assert {compared.count(each) for each in namespaces} == {2, 3}
    compared.clear()
    host.go_away()
    host.come_back()
    host.until(lambda: set(compared) == set(namespaces))
    host.settle()


def test_a_read_that_was_asked_before_a_removal_finds_nothing(host: RemoteHost) -> None:
    """The engine need not have heard of the removal."""
    host.publish(0)
    host.hold()
    answer, _ = host.pages.begin_read(0)
    host.until(lambda: "get_many" in host.engine.calls)
    gone: Future[bool] = Future()
    host.store.remove([key(0)], gone.set_result)
    host.engine.set(is_hung=True, hangs=lambda call: call == "set_control")
    found: ReadAnswer = answer.result(LIMIT)
    assert found.leading == 0
    host.let_go()
    assert gone.result(LIMIT)


def test_an_engine_that_fails_at_times_gets_its_removal(host: RemoteHost) -> None:
    """Every third call fails for a while. Later attempts do not flush this host's own pages."""
    host.publish(0)
    write, calls = host.engine.set_control, iter(range(1_000_000))

    def fail(*parts: object, **how: object) -> bool:
        if next(calls) in range(20, 22):
            raise EngineUnreachable("a test cut the line")
        return write(*parts, **how)  # type: ignore[arg-type]

    host.engine.set_control = fail  # type: ignore[method-assign]
    assert host.pages.remove(0)
    assert host.look(0) == 0
    assert host.heard == []
