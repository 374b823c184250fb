"""Lives of pages in an engine: a child goes before its parent, by the engine's clock.

The names in parentheses are those of the attack on the design that each test repeats.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_stores.numbered_pages import NAMESPACE, key
from page_stores.remote_rig import SETTINGS, page_name

from kvstore.remote.errors import CommandForbidden
from kvstore.remote.expiry import BUCKET_SECONDS, UNKNOWN_DEPTH, EngineClock, Expiry
from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.transfers.lineage import Lineage
from kvstore.storage.page_store import ExpiringPageStore, PageWrite
from mutants.live import put_into_this_process
from mutants.remote import REMOTE_MUTANTS
from remote.hosts import Hosts, RemoteHost

MUTANTS = {each.name: each for each in REMOTE_MUTANTS}
TTL = SETTINGS.ttl_seconds


class Time:
    """The engine's clock and the store's idea of it, which a test moves."""

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self.now_ms = 1_000_000_000_000
        self.host.engine._now_ms = lambda: self.now_ms  # type: ignore[method-assign]
        self.clock = host.store._refreshes._expiry._clock
        self.clock.now_ms = lambda: self.now_ms  # type: ignore[method-assign]

    def pass_buckets(self, count: float) -> None:
        """Lets time pass."""
        self.now_ms += int(count * BUCKET_SECONDS * 1000)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RemoteHost]:
    """Provides one host."""
    made = RemoteHost(tmp_path)
    yield made
    made.close()


def expiry_of(host: RemoteHost, number: int) -> int:
    """Returns when a page expires, in milliseconds of the engine."""
    return host.values[page_name(host.store, key(number))][1]


def write(host: RemoteHost, number: int, parent: int | None) -> None:
    """Writes a page after another one, as a keeper does, and refreshes nothing else."""
    host.store.there([key(number)])
    begun = host.pages.begin(number, parent)
    assert begun is not None
    assert begun.result(60)


def a_history_of_paths(folder: Path) -> None:
    """Pages are written one at a time, over hours, each after one of those before (E25)."""
    host = RemoteHost(folder)
    try:
        drawn = random.Random(7)
        host.publish(0)
        host.values.clear()
        host.reopen()
        clock = Time(host)
        host.publish(0)
        parents: dict[int, int | None] = {0: None}
        for number in range(1, 60):
            clock.pass_buckets(drawn.choice([0, 0.01, 0.3, 1.1]))
            parent = drawn.choice(list(parents)[-8:])
            write(host, number, parent)
            parents[number] = parent
            for child, above in parents.items():
                if above is not None:
                    later = expiry_of(host, child) - expiry_of(host, above)
                    assert later < 0, f"page {child} outlives its parent by {later} ms"
    finally:
        host.close()


def test_a_child_goes_before_its_parent(tmp_path: Path) -> None:
    """Also if it was written hours later (E25)."""
    a_history_of_paths(tmp_path)


def test_ancestors_that_are_not_refreshed_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["ancestors-not-refreshed"])
    with pytest.raises(AssertionError):
        a_history_of_paths(tmp_path)


def test_a_wrong_clock_of_a_host_changes_no_hits_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two days behind or ahead: the lives are the engine's (E24)."""
    two = Hosts(tmp_path)
    try:
        two.a.publish(0, 1)
        real = time.time
        for days in (-2, 2, -20_000):
            monkeypatch.setattr(time, "time", lambda days=days: real() + days * 86_400)
            two.b.reopen()
            two.b.engine._now_ms = lambda: int(real() * 1000)  # type: ignore[method-assign]
            two.b.publish(10 + days % 7)
            assert two.b.finds(0, 1) == [0, 1]
            two.b.store._upkeep._refresh()
            monkeypatch.setattr(time, "time", real)
            assert two.a.finds(0, 1, 10 + days % 7) == [0, 1, 10 + days % 7]
            expiry = two.values[page_name(two.b.store, key(10 + days % 7))][1] / 1000 - real()
            assert 0 < expiry <= TTL + BUCKET_SECONDS + 1
    finally:
        two.close()


def test_the_skew_of_clocks_is_known(host: RemoteHost) -> None:
    """It is in the statistics, and one that is wrong in the log."""
    host.engine.ahead_ms = 100_000
    host.until(lambda: abs(host.store.remote_use().clock_skew - 100) < 10)


def test_the_clock_may_take_as_long_as_a_read(host: RemoteHost) -> None:
    """An engine on a busy machine may answer its first call late, and is not away for that."""
    patience: list[float] = []

    def answer(deadline: float) -> int:
        patience.append(deadline - time.monotonic())
        return int(time.time() * 1000)

    host.engine.time_ms = answer  # type: ignore[method-assign]
    host.store._upkeep._check_at = 0.0
    host.until(lambda: patience)
    assert SETTINGS.timeout_seconds < patience[0] <= SETTINGS.clock_seconds
    assert RemoteSettings(timeout_seconds=9.0).clock_seconds == 9.0


def test_hits_are_refreshed_apart(host: RemoteHost) -> None:
    """A read is no write, and an engine that refuses refreshes serves it (E26)."""
    host.publish(0, 1)
    host.store._refreshes._bucket = -1
    host.store._lineage._pages[key(0)].bucket = -1
    refused: list[int] = []

    def refuse(names: list[bytes], *_: object) -> None:
        refused.append(len(names))
        raise CommandForbidden("NOPERM pexpireat")

    host.engine.refresh_many = refuse  # type: ignore[method-assign,assignment]
    host.engine.calls.clear()
    for _ in range(10):
        assert host.finds(0, 1) == [0, 1]
    assert "refresh_many" not in host.engine.calls
    host.until(lambda: refused)
    assert host.finds(0, 1) == [0, 1]
    assert host.look(0, 1) == 2
    assert host.store.remote_use().breaker_opened == 0


def test_hits_and_their_ancestors_live_longer(host: RemoteHost) -> None:
    """Once a bucket, with the control values that they need (A8, E26)."""
    clock = Time(host)
    host.values.clear()
    host.store._namespaces._records.clear()
    host.publish(0, 1, 2)
    before = [expiry_of(host, each) for each in range(3)]
    [control] = [each for each in host.values if each.startswith(b"kvr/")]
    kept = host.values[control][1]
    clock.pass_buckets(2)
    assert host.finds(2) == [2]
    host.until(lambda: host.values[control][1] > kept)
    host.until(lambda: [expiry_of(host, each) for each in range(3)] > before)
    after = [expiry_of(host, each) for each in range(3)]
    assert after == sorted(after, reverse=True)
    assert host.values[control][1] - clock.now_ms == 4 * TTL * 1000


def test_a_page_that_is_there_is_kept_longer(host: RemoteHost) -> None:
    """The thread that writes pages asks for it once a minute while it is in use."""
    clock = Time(host)
    host.values.clear()
    host.store._namespaces._records.clear()
    host.publish(0)
    before = expiry_of(host, 0)
    clock.pass_buckets(1)
    host.store.there([key(0)])
    host.until(lambda: expiry_of(host, 0) > before)


@pytest.mark.parametrize("depth", [0, 1, UNKNOWN_DEPTH, 2 * UNKNOWN_DEPTH])
def test_lives_lie_within_the_settings(depth: int) -> None:
    """A page lives for the time that is set, and a bucket more at most."""
    clock = EngineClock(time.time())
    expiry = Expiry(clock, TTL)
    assert TTL - BUCKET_SECONDS < expiry.life_ms(depth) / 1000 <= TTL + BUCKET_SECONDS
    assert Expiry(clock, 0.001).life_ms(depth) >= 1
    assert expiry.life_ms(depth + 1) <= expiry.life_ms(depth)


@pytest.mark.parametrize("ttl", [0.5, 60.0, 262.0, TTL])
def test_a_deep_page_lives_for_half_of_the_settings(ttl: float) -> None:
    """Also right before the end of a bucket. Near pages still go in their order."""
    clock = EngineClock(0.0)
    clock.now_ms = lambda: int(1000 * BUCKET_SECONDS) - 1  # type: ignore[method-assign]
    expiry = Expiry(clock, ttl)
    assert expiry.life_ms(2 * UNKNOWN_DEPTH) >= ttl * 1000 / 2
    near = [expiry.life_ms(depth) for depth in range(50)]
    assert near == sorted(set(near), reverse=True)


@pytest.mark.parametrize(("ttl", "bucket"), [(TTL, 600.0), (2400.0, 600.0), (60.0, 15.0)])
def test_a_short_life_has_short_buckets(ttl: float, bucket: float) -> None:
    """No page lives much longer than it should."""
    clock = EngineClock(0.0)
    clock.now_ms = lambda: 0  # type: ignore[method-assign]
    expiry = Expiry(clock, ttl)
    assert expiry.bucket_seconds == bucket
    assert expiry.life_ms(0) == 1000 * (ttl + bucket)
    clock.now_ms = lambda: int(1000 * bucket) - 1  # type: ignore[method-assign]
    assert (expiry.bucket, expiry.life_ms(0)) == (0, 1000 * ttl + 1)
    clock.now_ms = lambda: int(1000 * bucket)  # type: ignore[method-assign]
    assert expiry.bucket == 1


@given(
    ttl=st.floats(0.1, 200_000.0),
    begin=st.floats(0.0, 5000.0),
    depth=st.integers(0, 2 * UNKNOWN_DEPTH),
    lateness=st.lists(st.floats(0.0, 0.99), min_size=1, max_size=20),
)
def test_a_page_that_is_refreshed_in_time_never_expires(
    ttl: float, begin: float, depth: int, lateness: list[float]
) -> None:
    """Each use comes up to a bucket late, and a second one in a bucket extends nothing."""
    clock = EngineClock(0.0)
    now = begin
    clock.now_ms = lambda: int(1000 * now)  # type: ignore[method-assign]
    expiry = Expiry(clock, ttl)
    expires_at, used_in = 0.0, -1
    for late in lateness:
        if expiry.bucket != used_in:
            used_in, expires_at = expiry.bucket, now + expiry.life_ms(depth) / 1000
        now += expiry.bucket_seconds * (1 + late)
        # Milliseconds are cut off.
        assert now <= expires_at + 0.002


def test_a_store_says_how_often_a_page_has_to_be_used(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a bucket, or by a part of the life if the engine extends none."""
    assert isinstance(host.store, ExpiringPageStore)
    assert host.store.refresh_seconds == BUCKET_SECONDS
    able = replace(host.engine.capabilities, expires=False)
    monkeypatch.setattr(type(host.engine), "capabilities", able)
    assert host.store.refresh_seconds == TTL / 4


def test_the_memory_of_paths_is_bounded() -> None:
    """The pages used longest ago are forgotten; their descendants count as deep."""
    lineage = Lineage(most=3)
    for number in range(5):
        above = NAMESPACE if not number else key(number - 1).digest
        lineage.add(PageWrite(key(number), above, 1))
    assert [lineage.depth(key(each)) for each in range(5)] == [UNKNOWN_DEPTH] * 2 + [2, 3, 4]
    assert [each.depth for each in lineage.refreshed([key(4)], 9)] == [2, 3, 4]
    assert lineage.refreshed([key(4)], 9) == []
    lineage.add(PageWrite(key(9), key(0).digest, 1))
    assert lineage.depth(key(9)) == UNKNOWN_DEPTH + 1


def test_settings_without_writes_write_nothing(tmp_path: Path) -> None:
    """Neither pages nor control values, so a reader needs no such rights."""
    two = Hosts(tmp_path)
    reader = RemoteHost(tmp_path / "c", two.values, settings=replace(SETTINGS, writes=False))
    try:
        assert reader.look(0) == 0
        assert not two.values
        two.a.publish(0)
        assert reader.look(0) == 1
        assert reader.finds(0) == [0]
        assert reader.pages.begin(1, 0) is None
        assert "set_control" not in reader.engine.calls
        assert "put_many" not in reader.engine.calls
        assert reader.pages.remove(0)
        assert two.a.look(0) == 0
    finally:
        reader.close()
        two.close()
