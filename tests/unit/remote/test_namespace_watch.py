"""Removals by other hosts reach a host that asks the engine for nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from page_stores.numbered_pages import NAMESPACE
from page_stores.remote_rig import SETTINGS, wait_until

from kvstore.remote.history import namespace_watch
from kvstore.remote.history.namespace_watch import MOST_A_STEP, NamespaceWatch
from remote.hosts import Hosts, RemoteHost


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Provides two hosts, each of which begins its next round soon."""
    monkeypatch.setattr(namespace_watch, "ROUND_SECONDS", 0.0)
    made = Hosts(tmp_path)
    yield made
    made.close()


def test_a_host_that_looks_for_nothing_hears_of_removals(two: Hosts, tmp_path: Path) -> None:
    """It has pages in its memory alone, and writes none."""
    settings = replace(SETTINGS, writes=False)
    reader = RemoteHost(tmp_path / "reader", two.values, settings=settings)
    try:
        two.a.publish(0)
        reader.store.in_use = lambda: [NAMESPACE]
        assert two.a.pages.remove(0)
        wait_until(lambda: reader.heard)
        reader.settle()
        reader.engine.calls.clear()
        # Once it has heard, the next comparisons are no news.
        wait_until(lambda: reader.engine.calls.count("get_many") > 12)
        assert reader.heard == [NAMESPACE]
        assert "set_control" not in reader.engine.calls
    finally:
        reader.close()


def test_a_removal_is_seen_beside_a_lost_control_value(two: Hosts) -> None:
    """Each step reads several shards."""
    assert two.a.pages.remove(0)
    for name in sorted(two.values)[::2]:
        two.a.engine.evict(name)
    two.b.store.in_use = lambda: [NAMESPACE]
    wait_until(lambda: two.b.heard)


def test_a_step_has_a_bound(two: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many namespaces a host has; the next steps go on with the rest."""
    monkeypatch.setattr(namespace_watch, "ROUND_SECONDS", 60.0)
    now = [0.0]
    store = two.a.store
    watch = NamespaceWatch(store._namespaces, store._gate, lambda: now[0], seconds=1.0)
    many = [number.to_bytes(32, "big") for number in range(100 * MOST_A_STEP)]
    compared: list[bytes] = []
    watch._compare = compared.append  # type: ignore[method-assign,assignment]
    watch.in_use = lambda: many
    watch.step()
    assert compared == many[:MOST_A_STEP]
    for _ in range(99):
        watch.step()
    assert compared == many
    watch.in_use = lambda: many[:1]
    watch.step()
    assert compared == many
    now[0] += 60.0
    watch.step()
    watch.step()
    assert compared[len(many) :] == many[:1]
