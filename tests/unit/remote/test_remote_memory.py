"""Memory of the remote store: late transfers, spoiled values, plaintext, and hosts with faults.

The names in parentheses are those of the attack on the design that each test repeats.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

import pytest
from page_stores.numbered_pages import LIMIT, NAMESPACE, PAGE_BYTES, key, memory, page_bytes
from page_stores.remote_rig import SETTINGS, page_name, wait_until
from xxhash import xxh3_64_intdigest

from kvstore.remote.expiry import EngineClock
from kvstore.remote.remote_store import EngineUnsuited
from kvstore.remote.secret.names import RemotePage
from kvstore.remote.secret.sealing import SEAL_BYTES, PageSealer
from kvstore.remote.transfers.reader import _calls_of, _Wanted
from kvstore.remote.transfers.upkeep import DELETE_SECONDS, Upkeep
from kvstore.storage.page_store import PageRead, Presence, ReadAnswer
from mutants.live import put_into_this_process
from mutants.remote import REMOTE_MUTANTS
from remote.hosts import Hosts, RemoteHost
from remote.memory_engine import MemoryEngine
from remote.remote_pages import OTHER_SECRET, SECRET

MUTANTS = {each.name: each for each in REMOTE_MUTANTS}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    """Provides one host."""
    made = RemoteHost(tmp_path)
    yield made
    made.close()


def transfers_after_the_answer_change_nothing(folder: Path) -> None:
    """An engine without deadlines answers a read after it was given up."""
    host = RemoteHost(folder, settings=replace(SETTINGS, read_threads=1))
    try:
        host.publish(0, 1)
        before: list[memoryview] = []
        read = host.engine.get_many

        def watched(names: object, into: list[memoryview], deadline: float) -> object:
            before.extend(into)
            return read(names, into, deadline)  # type: ignore[arg-type]

        host.engine.get_many = watched  # type: ignore[method-assign,assignment]
        host.engine.set(is_late=True, is_hung=True, hangs=lambda call: call == "get_many")
        answer, into = host.pages.begin_read(0, 1, deadline=monotonic() + 0.2)
        assert answer.result(LIMIT).leading == 0
        for each in into:
            each[:] = page_bytes(50)
        # The next read must not use the memory that the engine still writes into.
        later, _ = host.pages.begin_read(0, 1, deadline=monotonic() + 0.2)
        assert later.result(LIMIT).leading == 0
        shared = [
            (one, other)
            for number, one in enumerate(before)
            for other in before[number + 1 :]
            if _overlap(one, other)
        ]
        assert not shared, "memory of a call that has not returned is used again"
        host.let_go()
        host.engine.set(is_late=False)
        assert host.finds(0, 1) == [0, 1]
        assert [each == page_bytes(50) for each in into] == [True, True]
    finally:
        host.close()


def _overlap(one: memoryview, other: memoryview) -> bool:
    """Returns whether two buffers share a byte, by writing to one of them."""
    kept = bytes(one)
    one[:] = b"\0" * one.nbytes
    zeros = bytes(other)
    one[:] = b"\1" * one.nbytes
    shared = bytes(other) != zeros
    one[:] = kept
    return shared


def test_a_late_transfer_changes_nothing_of_others(tmp_path: Path) -> None:
    """The engine keeps its memory until its call has returned."""
    transfers_after_the_answer_change_nothing(tmp_path)


def test_memory_that_is_used_again_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before fails if the staging memory is kept after a late call."""
    put_into_this_process(monkeypatch, MUTANTS["staging-used-again"])
    with pytest.raises(AssertionError):
        transfers_after_the_answer_change_nothing(tmp_path)


def test_calls_that_never_return_are_bounded(host: RemoteHost) -> None:
    """Later calls fail at once, and the store works again when they return (F33)."""
    host.publish(0)
    host.engine.set(is_late=True, is_hung=True, hangs=lambda call: call == "get_many")
    for _ in range(20):
        answer, _ = host.pages.begin_read(0, deadline=monotonic() + 0.02)
        assert answer.result(LIMIT).leading == 0
    assert host.store._calls.stuck_count <= 8
    host.let_go()
    wait_until(lambda: not host.store._calls.stuck_count)
    host.engine.set(is_late=False)
    host.come_back()
    assert host.finds(0) == [0]


def test_a_read_that_waits_for_a_thread_ends_at_its_deadline(host: RemoteHost) -> None:
    """Other reads occupy all threads for longer."""
    host.publish(0)
    host.hold()
    first = [host.pages.begin_read(0)[0] for _ in range(2)]
    host.until(lambda: host.engine.calls.count("get_many") == 2)
    began = monotonic()
    late, _ = host.pages.begin_read(0, deadline=began + 0.05)
    assert late.result(LIMIT).leading == 0
    assert not any(each.done() for each in first)
    host.let_go()
    assert [each.result(LIMIT).leading for each in first] == [1, 1]


def a_page_that_changed_before_its_seal(folder: Path) -> None:
    """A worker writes over a page between the check and the seal."""
    host = RemoteHost(folder)
    try:
        host.publish(0)
        name = page_name(host.store, key(1))
        # As a host without the check would have sealed it.
        record = host.store._namespaces._records[key(1).namespace]
        shard = host.store._page_names.shard(key(1))
        page = host.store._page_names.page(key(1), record.known[shard], PAGE_BYTES)
        value = memoryview(bytearray(PAGE_BYTES + SEAL_BYTES))
        _seal_with(PageSealer(SECRET), page, page_bytes(1), 12345, value)
        host.values[name] = bytes(value), host.values[page_name(host.store, key(0))][1]
        assert host.finds(0, 1) == [0], "a page is served that its writer's checksum denies"
        use = host.store.remote_use()
        assert {str(each): count for each, count in use.rejected_pages.items() if count} == {
            "checksum": 1
        }
    finally:
        host.close()


def _seal_with(
    sealer: PageSealer, page: object, content: bytes, checksum: int, value: memoryview
) -> None:
    """Seals a page with a checksum that is not its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstore.remote.secret.sealing.xxh3_64_intdigest", lambda _: checksum)
        sealer.seal(page, [memoryview(content)], checksum, value)  # type: ignore[arg-type]


def test_the_writers_checksum_is_compared_after_the_seal(tmp_path: Path) -> None:
    """It travels inside the seal."""
    a_page_that_changed_before_its_seal(tmp_path)


def test_a_checksum_computed_on_receipt_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["checksum-computed-on-receipt"])
    with pytest.raises(AssertionError):
        a_page_that_changed_before_its_seal(tmp_path)


def test_an_answer_has_the_writers_checksum(host: RemoteHost) -> None:
    """A page that is published is thus compared with what its first writer gave."""
    host.knows(0)
    checksum = xxh3_64_intdigest(page_bytes(0))
    begun = host.pages.begin(0, checksum=checksum)
    assert begun is not None
    assert begun.result(LIMIT)
    answer, _ = host.pages.answer(0)
    assert answer.checksums == (checksum,)


def test_plaintext_that_fails_its_tag_reaches_no_reader(host: RemoteHost) -> None:
    """The memory of the reader, which workers map, is clear by the answer."""
    host.publish(0)
    host.spoil(0)
    into = memory(PAGE_BYTES)
    into[:] = b"\5" * PAGE_BYTES
    answers: list[ReadAnswer] = []
    host.store.read([PageRead(key(0), [into])], answers.append, inf)
    host.until(lambda: answers)
    assert answers[0].leading == 0
    assert into == bytes(PAGE_BYTES)


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str, bool]] = {
    "flipped": (lambda value: value[:-1] + bytes([value[-1] ^ 1]), "seal", True),
    "truncated": (lambda value: value[:-1], "format", False),
    "another version": (lambda value: b"KVR\x01" + value[4:], "format", False),
    "another secret": (lambda value: value[:4] + b"\0\0\0\0" + value[8:], "secret", False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_bad_value_is_a_miss_and_is_written_anew(tmp_path: Path, name: str) -> None:
    """Only a spoiled one is deleted: others may use those of other versions (B14, B15)."""
    change, reason, is_deleted = CHANGES[name]
    two = Hosts(tmp_path)
    try:
        two.a.publish(0, 1, 2)
        two.a.change(key(1), change)
        place = page_name(two.a.store, key(1))
        bad = two.values[place]
        assert two.b.finds(0, 1, 2) == [0, 2]
        assert two.b.lost == [key(1)]
        counts = two.b.store.remote_use().rejected_pages
        assert {str(each) for each, count in counts.items() if count} == {reason}
        assert two.b.look(0, 1, 2) == 1
        assert two.b.store.there([key(1)]) == [Presence.ABSENT]
        if is_deleted:
            two.b.until(lambda: place not in two.values)
        else:
            two.b.engine.calls.clear()
            two.b.until(
                lambda: two.b.store._upkeep._deletes or "delete_many" not in two.b.engine.calls
            )
            assert two.values[place] == bad
        begun = two.b.pages.begin(1, 0)
        assert begun is not None
        assert begun.result(LIMIT)
        assert [two.a.finds(0, 1, 2), two.b.finds(0, 1, 2)] == [[0, 1, 2], [0, 1, 2]]
    finally:
        two.close()


def test_deletions_are_slow(host: RemoteHost) -> None:
    """A host with bad memory does not delete what others use (A6, B15)."""
    host.publish(*range(30))
    host.engine.calls.clear()
    host.engine.set(corrupts=lambda name: name.startswith(b"kv1/"))
    began = monotonic()
    assert host.finds(*range(30)) == []
    host.engine.set(corrupts=lambda _: False)
    host.until(lambda: "delete_many" in host.engine.calls)
    deleted = 30 - sum(name.startswith(b"kv1/") for name in host.values)
    assert deleted <= monotonic() - began + 1
    assert "set_control" not in host.engine.calls, "corruption renews a revision"


def test_no_page_that_was_written_anew_is_deleted(
    host: RemoteHost,
) -> None:
    """Deletions wait for each other, and the page may be right by then."""
    host.publish(*range(4))
    names = [page_name(host.store, key(number)) for number in range(4)]
    bad, passed = set(names), [0.0]
    upkeep = Upkeep(
        host.store._quiet_calls,
        EngineClock(0.0),
        lambda: monotonic() + passed[0],
        read_clock=lambda: host.store._quiet_calls.time_ms(monotonic() + LIMIT),
        seconds=LIMIT,
        tick=lambda: None,
        check=lambda: None,
        bad=bad,
    )
    for each in names:
        upkeep.delete(each)
    upkeep._delete()
    bad.discard(names[1])
    upkeep._delete()
    passed[0] += DELETE_SECONDS
    upkeep._delete()
    assert [each in host.values for each in names] == [False, True, False, True]
    assert not upkeep._deletes


def test_a_host_whose_pages_change_writes_no_more(host: RemoteHost) -> None:
    """A sloppy worker or bad memory does not fill the tier of all (A6)."""
    host.publish(0)
    wrong = xxh3_64_intdigest(b"another page")
    for number in (1, 2, 3):
        begun = host.pages.begin(number, 0, checksum=wrong)
        assert begun is not None
        assert not begun.result(LIMIT)
    assert host.store.remote_use().writes_stopped
    assert host.pages.begin(4, 0) is None
    assert host.finds(0) == [0]
    counts = host.store.remote_use().refused_writes
    assert {str(each): count for each, count in counts.items() if count} == {
        "changed": 3,
        "off": 1,
    }


def test_one_host_with_bad_memory_empties_no_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a hundred corruptions renews the revisions; the rest are deleted by name (A6)."""
    two = Hosts(tmp_path)
    now = [0.0]
    monkeypatch.setattr(two.a.store._corruption, "_clock", lambda: now[0])
    try:
        two.a.publish(*range(3))
        assert two.b.look(0) == 1
        answers: list[bool] = []
        two.a.store.remove_corrupt([key(2)], answers.append)
        two.a.until(lambda: answers)
        two.b.look(0)
        two.b.until(lambda: two.b.heard)
        two.b.settle()
        two.b.publish(*range(10))
        # A has found them, so it knows what comes after what.
        assert two.a.finds(*range(10)) == list(range(10))
        for number in range(99):
            two.a.store.remove_corrupt([key(8)], answers.append)
            two.a.until(lambda number=number: len(answers) == number + 2)  # type: ignore[misc]
        assert all(answers)
        assert two.b.finds(*range(10)) == list(range(8))
        assert two.b.heard == [NAMESPACE]
        assert two.a.store.remote_use().writes_stopped
        now[0] += 601.0
        two.b.until(lambda: not two.b.look(0))
        two.b.until(lambda: len(two.b.heard) == 2)
        now[0] += 5000.0
        assert two.a.store._corruption.due() == []
    finally:
        two.close()


def test_another_secret_shares_nothing(tmp_path: Path) -> None:
    """Neither pages nor removals."""
    two = Hosts(tmp_path)
    other = RemoteHost(tmp_path / "c", two.values, secret=OTHER_SECRET)
    try:
        two.a.publish(0)
        assert (other.look(0), other.finds(0)) == (0, [])
        assert other.pages.remove(0)
        assert two.a.finds(0) == [0]
        assert two.a.heard == []
    finally:
        other.close()
        two.close()


def test_an_engine_without_revisions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host would hear of another's removals."""
    able = MemoryEngine().capabilities
    monkeypatch.setattr(MemoryEngine, "capabilities", replace(able, revisions=False))
    with pytest.raises(EngineUnsuited):
        RemoteHost(tmp_path)


@pytest.mark.parametrize(
    ("size", "count", "calls"),
    [(4096, 5, [5]), (1 << 20, 5, [2, 2, 1]), (8 << 20, 5, [2, 2, 1]), (700_000, 3, [2, 1])],
    ids=["small", "medium", "large", "odd"],
)
def test_a_call_of_the_engine_has_few_pages(size: int, count: int, calls: list[int]) -> None:
    """They are as many as stay in the processor's cache, and two where one is larger."""
    page = RemotePage(bytes(32), 0, bytes(16), bytes(32), 0, size)
    wanted = [_Wanted(number, page, b"", ()) for number in range(count)]
    found = list(_calls_of(wanted))
    assert [len(each) for each in found] == calls
    assert [each.number for call in found for each in call] == list(range(count))
