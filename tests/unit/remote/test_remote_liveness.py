"""Liveness of the remote store: an engine that is slow, hung or away costs nobody much.

The names in parentheses are those of the attack on the design that each test repeats.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from threading import Event, Lock
from time import monotonic

import pytest
from page_stores.numbered_pages import LIMIT, NAMESPACE, key
from page_stores.remote_rig import SETTINGS, wait_until

from kvstore.remote.errors import (
    CommandForbidden,
    CredentialRefused,
    EngineFull,
    EngineUnreachable,
    RemoteError,
)
from kvstore.remote.liveness.breaker import MOST_FAILURES, Breaker
from kvstore.remote.liveness.look_worth import MISSING_SECONDS, LookWorth
from kvstore.remote.liveness.probe import MOST_SECONDS, probe_pauses
from kvstore.remote.liveness.ramp import Ramp
from kvstore.remote.liveness.write_pace import LEAST_SHARE, STEP_SECONDS, WritePace
from kvstore.remote.remote_use import LookAnswer, Refusal
from kvstore.storage.page_store import PageKey, PageWrite, Presence, StoreState
from mutants.live import put_into_this_process
from mutants.remote import REMOTE_MUTANTS
from remote.dead_node import DeadNode
from remote.hosts import RemoteHost

MUTANTS = {each.name: each for each in REMOTE_MUTANTS}
OTHER = bytes(range(32))
QUICK = replace(SETTINGS, timeout_seconds=0.2)


@contextmanager
def one_host(folder: Path) -> Iterator[RemoteHost]:
    """Provides a host whose calls are late after a fifth of a second."""
    made = RemoteHost(folder, settings=QUICK)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    """Provides one host."""
    with one_host(tmp_path) as made:
        yield made


class SetClock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


def a_hung_engine_costs_a_look_its_time_alone(folder: Path) -> None:
    """Looks end at their deadlines, and then take no time (F28)."""
    with one_host(folder) as host:
        host.publish(0)
        host.engine.set(is_hung=True)
        began = monotonic()
        assert host.look(0) == 0
        assert monotonic() - began < 10 * QUICK.timeout_seconds, "a look waits beyond its limit"
        began = monotonic()
        assert host.store.look([key(1)], began + 0.1) == 0
        assert monotonic() - began < 10 * QUICK.timeout_seconds
        host.fail()
        began = monotonic()
        for _ in range(100):
            assert host.look(0) == 0
            assert host.finds(0) == []
            assert host.pages.begin(1) is None
        assert monotonic() - began < LIMIT / 4
        assert host.store.state is StoreState.AWAY
        host.come_back()
        assert host.look(0) == 1


def test_a_hung_engine_costs_a_look_its_time_alone(tmp_path: Path) -> None:
    """One deadline bounds everything in a call (F28)."""
    a_hung_engine_costs_a_look_its_time_alone(tmp_path)


def test_a_look_without_a_deadline_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["look-without-a-deadline"])
    with pytest.raises(AssertionError):
        a_hung_engine_costs_a_look_its_time_alone(tmp_path)


def test_one_deadline_bounds_a_read_and_its_second_revision(host: RemoteHost) -> None:
    """The pages come, and then the engine hangs: the read ends in time, without a page (F28)."""
    host.publish(0)
    host.engine.set(is_hung=True, hangs=lambda call: call == "control")
    began = monotonic()
    answer, _ = host.pages.begin_read(0, deadline=began + 0.2)
    assert answer.result(LIMIT).leading == 0
    assert monotonic() - began < 2.0
    host.let_go()
    assert host.finds(0) == [0]


def an_engine_that_passes_small_values_alone(folder: Path) -> None:
    """Large ones never arrive, as in a network that drops large packets (F29)."""
    with one_host(folder) as host:
        host.publish(0)
        host.go_away()
        host.engine.set(error=None, is_hung=True, hangs={"put_many", "get_many"}.__contains__)
        host.until(lambda: host.engine.calls[-3:].count("put_many") or _pinged(host))
        assert host.store.state is StoreState.AWAY, "a small answer counts as a proof"
        host.come_back()
        assert host.finds(0) == [0]


def _pinged(host: RemoteHost) -> bool:
    return host.store.state is StoreState.OPEN


def test_a_probe_is_as_large_as_a_page(tmp_path: Path) -> None:
    """An engine that answers a ping alone stays away (F29)."""
    an_engine_that_passes_small_values_alone(tmp_path)


def test_a_ping_as_a_probe_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["ping-is-a-probe"])
    with pytest.raises(AssertionError):
        an_engine_that_passes_small_values_alone(tmp_path)


def test_no_request_is_a_probe(host: RemoteHost) -> None:
    """While the engine is away nobody's call reaches it."""
    host.publish(0)
    host.engine.set(error=CredentialRefused("WRONGPASS"))
    host.fail()
    host.engine.calls.clear()
    for number in range(50):
        host.look(number)
        host.finds(number)
        host.store.there([key(number)])
        host.pages.begin(number)
    assert host.engine.calls == []


def threads_that_fail_together(folder: Path) -> None:
    """Four looks wait for one engine, and all are late (F30)."""
    with one_host(folder) as host:
        host.publish(0)
        host.engine.set(is_hung=True)
        with ThreadPoolExecutor(24) as threads:
            paths = [[key(number)] for number in range(1, 25)]
            began = monotonic()
            assert sum(threads.map(lambda path: host.store.look(path, inf), paths)) == 0
        assert monotonic() - began < 10 * QUICK.timeout_seconds
        use = host.store.remote_use()
        assert use.looks[LookAnswer.FAILED] <= 4, "more looks wait than have places"
        assert use.looks[LookAnswer.SKIPPED] >= 20
        assert host.store.state is StoreState.OPEN, "one stall counts as several"


def test_threads_that_fail_together_count_once(tmp_path: Path) -> None:
    """Only so many look at a time, and what they wait for is one failure (F30)."""
    threads_that_fail_together(tmp_path)


def test_failures_count_in_a_window_and_once_for_each_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that answers every second call is as good as dead (F30)."""

    def away_after(fails_together: int) -> int:
        clock = SetClock()
        breaker = Breaker(clock)
        breaker.succeed()
        for count in range(1, 100):
            clock.now += 1
            for _ in range(fails_together):
                breaker.fail(EngineUnreachable("cut"), clock.now - 0.5)
            clock.now += 1
            if breaker.is_open:
                return count
            breaker.succeed()
        return 100

    assert [away_after(1), away_after(4)] == [MOST_FAILURES, MOST_FAILURES]
    put_into_this_process(monkeypatch, MUTANTS["each-late-thread-counts"])
    assert away_after(4) < MOST_FAILURES


def test_an_engine_that_never_answered_is_away_at_once() -> None:
    """Its address may be wrong, which an operator sees without a request. A node may begin late."""
    for node, is_away in (("", True), ("a node", False)):
        breaker = Breaker(SetClock(), node=node)
        breaker.fail(EngineUnreachable("name not known"), 0.5)
        assert breaker.is_open == is_away
    breaker = Breaker(SetClock())
    breaker.succeed()
    breaker.fail(EngineUnreachable("cut"), 0.5)
    assert not breaker.is_open


def test_few_failures_among_many_calls_are_none() -> None:
    """One of five."""
    clock = SetClock()
    breaker = Breaker(clock)
    breaker.succeed()
    for number in range(1000):
        clock.now += 1
        if number % 5:
            breaker.succeed()
        else:
            breaker.fail(EngineUnreachable("cut"), clock.now)
    assert not breaker.is_open
    breaker.fail(EngineFull("OOM"), clock.now)
    assert breaker.opened_count == 0


@pytest.mark.parametrize("error", [CredentialRefused("WRONGPASS"), CommandForbidden("NOPERM")])
def test_an_operators_error_is_not_final(host: RemoteHost, error: RemoteError) -> None:
    """The store says why it is away, probes slowly, and works once the setting is right (E27)."""
    host.publish(0)
    host.engine.set(error=error)
    assert host.look(0) == 0
    assert host.store.state is StoreState.AWAY
    assert str(error) in host.store.remote_use().why
    pauses = probe_pauses(lambda: True)
    assert next(pauses) > 2.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstore.remote.liveness.breaker.Breaker.rest", lambda *_: True)
        host.come_back()
    assert host.look(0) == 1


@pytest.mark.parametrize("is_raised", [True, False])
def test_an_engine_that_forbids_writes_serves_reads(host: RemoteHost, *, is_raised: bool) -> None:
    """Neither a refused page nor a removal that waits takes the reads away."""
    host.publish(0)
    error = CommandForbidden("NOPERM set")

    def forbid(names: list[bytes], *_: object, **__: object) -> Iterator[RemoteError]:
        if is_raised:
            raise error
        yield from [error] * len(names)

    def forbid_control(*_: object, **__: object) -> bool:
        raise error

    host.engine.put_many = forbid  # type: ignore[method-assign,assignment]
    host.engine.set_control = forbid_control  # type: ignore[method-assign]
    assert not host.pages.write(1)
    assert host.store.state is StoreState.OPEN
    assert "NOPERM set" in host.store.remote_use().why
    assert host.pages.begin(2) is None, "a page is written although the engine forbade it just now"
    assert host.store.remote_use().refused_writes[Refusal.ENGINE] == 2
    host.store.remove([key(9, OTHER)], lambda _: None)
    host.until(lambda: host.store._removals._told)
    assert host.look(0) == 1
    assert host.finds(0) == [0]
    host.go_away()
    host.come_back()
    assert host.finds(0) == [0]
    assert host.store.remote_use().breaker_opened == 1


def test_a_full_engine_serves_reads(host: RemoteHost) -> None:
    """A refused value is one lost write (A9)."""
    host.publish(0)
    host.engine.set(most_values=len(host.values))
    for number in range(1, 30):
        begun = host.pages.begin(number, 0)
        assert begun is not None
        assert not begun.result(LIMIT)
    assert host.store.state is StoreState.OPEN
    assert host.finds(0) == [0]
    assert host.store.remote_use().refused_writes[Refusal.ENGINE] == 29


def test_pauses_double_with_jitter() -> None:
    """Hosts do not probe in step."""
    pauses = probe_pauses(lambda: False)
    drawn = [next(pauses) for _ in range(12)]
    limits = [min(0.2 * 2**number, MOST_SECONDS) for number in range(12)]
    assert all(limit / 2 <= each <= limit for each, limit in zip(drawn, limits, strict=True))
    assert len(set(drawn)) == 12


def test_places_double_after_a_return() -> None:
    """One load at a time first (F32)."""
    ramp = Ramp(4)
    assert [ramp.take() for _ in range(5)] == [True] * 4 + [False]
    for _ in range(4):
        ramp.give(succeeded=True)
    ramp.restart()
    assert [ramp.take(), ramp.take()] == [True, False]
    ramp.give(succeeded=False)
    assert [ramp.take(), ramp.take()] == [True, False]
    ramp.give(succeeded=True)
    assert [ramp.take(), ramp.take(), ramp.take()] == [True, True, False]
    assert not ramp.wait(0.001)


def shares_after_a_return(slow_at: set[int]) -> list[float]:
    """Returns a writer's share at each second after a return, with slow looks at some."""
    clock = SetClock()
    pace = WritePace(clock)
    for _ in range(50):
        pace.note_look(0.002)
    pace.restart()
    shares = []
    for second in range(12):
        for _ in range(8):
            clock.now += STEP_SECONDS / 8
            pace.note_look(0.1 if second in slow_at else 0.002)
        rest = pace.rest(0.01)
        shares.append(pace.share)
        assert rest == 0.0 or pace.share < 1.0
    return shares


def test_writes_begin_with_little_after_a_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their share of the time doubles each second while looks are quick (F32)."""
    assert shares_after_a_return(set())[:4] == [2 * LEAST_SHARE, 4 * LEAST_SHARE, 0.4, 0.8]
    assert shares_after_a_return(set())[4:] == [1.0] * 8
    slow = shares_after_a_return({2, 3, 4})
    assert slow[1] > slow[2] > slow[3] >= LEAST_SHARE
    put_into_this_process(monkeypatch, MUTANTS["returns-at-full-speed"])
    assert shares_after_a_return(set())[0] == 1.0


def test_hosts_that_return_together_leave_time_for_looks(tmp_path: Path) -> None:
    """An engine of one call at a time is away, and comes back to four hosts with much (F32)."""
    line, pause = Lock(), Event()
    values: dict[bytes, tuple[bytes, int]] = {}
    settings = replace(SETTINGS, timeout_seconds=1.0, queue_bytes=1 << 22)
    hosts = [RemoteHost(tmp_path / str(each), values, settings=settings) for each in range(4)]
    try:
        for number, each in enumerate(hosts):
            put = each.engine.put_many

            def slow(*parts: object, put: object = put) -> Iterator[object]:
                for result in put(*parts):  # type: ignore[operator]
                    with line:
                        pause.wait(0.002)
                    yield result

            each.engine.put_many = slow  # type: ignore[method-assign,assignment]
            each.publish(1000 + number, namespace=OTHER)
            each.go_away()
        for each in hosts:
            each.come_back()
        # Each host restarts its pace right after it is open again.
        wait_until(lambda: max(each.store._pace.share for each in hosts) < 1.0)
        begun = [
            [each.pages.begin(number, namespace=OTHER) for number in range(1, 60)] for each in hosts
        ]
        seconds = []
        for _ in range(40):
            began = monotonic()
            hosts[0].look(1000, namespace=OTHER)
            seconds.append(monotonic() - began)
        assert median(seconds) < settings.timeout_seconds / 2
        assert all(each.store.state is StoreState.OPEN for each in hosts)
        assert any(each is not None and each.result(LIMIT) for each in begun[0])
    finally:
        for each in hosts:
            each.close()


def test_looks_that_find_nothing_become_rare() -> None:
    """One of twenty is made, until one finds a page (F31)."""
    clock = SetClock()
    worth = LookWorth(clock)
    made = 0
    for number in range(2000):
        first = key(number)
        if worth.is_worth(first):
            made += 1
            worth.note(first, LookAnswer.MISS, 0.01)
    assert 400 < made < 600
    assert worth.latency == pytest.approx(0.01)
    assert worth.is_worth(key(5000, OTHER))
    for number in range(2000, 2100):
        worth.note(key(number), LookAnswer.HIT, 0.01)
    assert all(worth.is_worth(key(number)) for number in range(3000, 3020))


def test_a_missing_first_page_is_not_asked_for_again_at_once() -> None:
    """Unless this host wrote it (F31)."""
    clock = SetClock()
    worth = LookWorth(clock)
    for number in (1, 2):
        worth.note(key(number), LookAnswer.MISS, 0.01)
        assert not worth.is_worth(key(number))
    worth.note_written(key(1))
    assert worth.is_worth(key(1))
    clock.now += MISSING_SECONDS
    assert worth.is_worth(key(2))


def test_old_writes_are_dropped(tmp_path: Path) -> None:
    """They would come too late for anybody, and hold memory of the tier above."""
    settings = replace(SETTINGS, write_seconds=0.3)
    host = RemoteHost(tmp_path, settings=settings)
    try:
        host.publish(0)
        host.publish(0, namespace=OTHER)
        host.hold()
        begun = [host.pages.begin(number, 0) for number in (1, 2)]
        waiting = host.pages.begin(1, 0, namespace=OTHER)
        assert waiting is not None
        assert not waiting.result(LIMIT)
        assert [each is not None and each.result(LIMIT) for each in begun] == [False, False]
        host.let_go()
        counts = host.store.remote_use().refused_writes
        assert counts[Refusal.OLD] + counts[Refusal.AWAY] == 3
        assert host.store.use().queued_bytes == 0
    finally:
        host.close()


def test_a_namespace_fills_half_of_the_queue(host: RemoteHost) -> None:
    """The next one finds room."""
    host.publish(0)
    host.publish(0, namespace=OTHER)
    host.hold()
    room = host.store.writing_room
    size = 1 << 16
    begun = [host.pages.begin(number, 0, size=size) for number in range(1, 40)]
    assert sum(each is not None for each in begun) == room // 2 // size
    assert host.store.remote_use().refused_writes[Refusal.QUEUE] > 0
    assert host.pages.begin(1, 0, size=size, namespace=OTHER) is not None
    host.let_go()


def test_a_node_that_is_away_ends_paths_at_its_shards(host: RemoteHost) -> None:
    """The other nodes' pages are found, and the breaker stays closed (A5)."""
    numbers = range(200)
    shards = {number: host.store._page_names.shard(_apart(number)) for number in numbers}
    host.store.there([_apart(number) for number in numbers])
    assert all(_write(host, number) for number in numbers)
    dead = set(range(21))
    name = host.store._names.control
    tags = {name(NAMESPACE, each).split(b"/", 1)[1] for each in dead}
    node = DeadNode(host.engine, lambda name: name.split(b"/")[1] in tags)
    alive = [number for number in numbers if shards[number] not in dead]
    for _ in range(3):
        for number in numbers:
            with host.store._worth._mutex:
                host.store._worth._missing.clear()
            found = host.store.look([_apart(number)], inf)
            assert found == (number in alive)
    assert host.store.state is StoreState.OPEN
    assert host.store.there([_apart(number) for number in numbers]) == [
        2 if number in alive else 0 for number in numbers
    ]
    assert host.store.remote_use().nodes_away == ("dead:1",)
    node.come_back()
    assert host.store.there([_apart(number) for number in numbers]) == [2] * len(numbers)


def a_dead_node_that_many_calls_need(folder: Path) -> None:
    """Calls need that node alone, and a removal waits for it (A5)."""
    with one_host(folder) as host:
        numbers = range(60)
        shards = {number: host.store._page_names.shard(_apart(number)) for number in numbers}
        host.store.there([_apart(number) for number in numbers])
        assert all(_write(host, number) for number in numbers)
        control = host.store._names.control
        thirds = product((NAMESPACE, OTHER), range(0, 64, 3))
        tags = {control(*each).split(b"/", 1)[1] for each in thirds}
        dead = [number for number in numbers if not shards[number] % 3]
        unwritten = [each + 1000 for each in numbers]
        node = DeadNode(host.engine, lambda name: name.split(b"/")[1] in tags)
        removed: Future[bool] = Future()
        host.store.remove_namespace(OTHER, removed.set_result)
        while node.calls < 100:
            for number in dead:
                with host.store._worth._mutex:
                    host.store._worth._missing.clear()
                assert host.store.look([_apart(number)], inf) == 0
            for number in unwritten:
                if not host.store._page_names.shard(_apart(number)) % 3:
                    assert not _write(host, number), "a page of a dead node is written"
        use = host.store.remote_use()
        assert (use.breaker_opened, use.state) == (0, StoreState.OPEN), "one node closes the tier"
        assert use.refused_writes[Refusal.AWAY] > 0
        others = [number for number in numbers if number not in dead]
        assert [host.store.look([_apart(each)], inf) for each in others] == [1] * len(others)
        assert not removed.done()
        node.come_back()
        assert removed.result(LIMIT)


def test_a_dead_node_closes_nothing_for_the_others(tmp_path: Path) -> None:
    """However many calls need that node alone, and also while a removal waits for it."""
    a_dead_node_that_many_calls_need(tmp_path)


def test_a_node_that_closes_the_tier_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["one-node-closes-all"])
    with pytest.raises(AssertionError):
        a_dead_node_that_many_calls_need(tmp_path)


def test_a_probe_passes_over_a_node_that_is_away(host: RemoteHost) -> None:
    """An engine of which one node is dead comes back from an absence of all."""
    host.publish(0)
    DeadNode(host.engine, lambda name: name.endswith(b"canary") and name[5] in b"01234567")
    host.go_away()
    host.come_back()
    assert host.finds(0) == [0]


def _apart(number: int) -> PageKey:
    """Returns the key of a page that is its own segment."""
    plain = key(number)
    return plain._replace(segment=plain.digest)


def _write(host: RemoteHost, number: int) -> bool:
    """Writes a page that is its own segment."""
    done: Future[bool] = Future()
    page = PageWrite(_apart(number), NAMESPACE, 1)
    content = [memoryview(b"x" * 512)]
    assert host.store.write(page, content, done.set_result, checksum=None)
    return done.result(LIMIT)


@pytest.mark.parametrize("keeps_deadlines", [True, False])
def test_an_error_that_no_engine_should_raise_is_a_failure(
    host: RemoteHost, *, keeps_deadlines: bool
) -> None:
    """A fault in an engine's library ends no match, no writer and no removal."""
    host.publish(0)
    host.engine.set(is_late=not keeps_deadlines, error=ZeroDivisionError("a library's fault"))
    assert host.look(0) == 0
    assert host.knows(0) == [Presence.ABSENT]
    assert host.finds(0) == []
    host.fail()
    assert "ZeroDivisionError" in host.store.remote_use().why
    host.come_back()
    host.until(lambda: host.look(0) == 1)
