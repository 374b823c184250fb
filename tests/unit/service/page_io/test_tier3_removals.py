"""Removed pages do not return from tier 3: they are forgotten before the answer."""

from threading import Thread
from typing import Any

import pytest

from kvstore.service.page_io.slow_tier import TierState
from kvstore.storage.page_store import PageKey
from stores.disk_store import (
    LIMIT,
    PAGES,
    DiskStore,
    DiskStores,
    GatedSlab,
    in_background,
    page_count,
)
from wire.own_logs import own_logs


def test_what_is_removed_does_not_come_back(stores: DiskStores) -> None:
    """Neither by a load that was under way, nor by a later one, nor after a restart."""
    store = stores.open()
    store.write(0)
    store.write(1)
    later = stores.reopen(store)
    later.slab.closed = True
    waiting, found = in_background(later, 0)
    assert later.slab.asked.wait(LIMIT)
    tokens = later.sequence(0).tokens[: 4 * later.world.layout.page_tokens]
    later.world.store.evict_prefix(later.caller.identity, later.namespace_id, tokens)
    later.slab.let_go()
    waiting.join(LIMIT)
    assert [page_count(each) for each in found] == [0]
    assert later.tiers(0) == []
    last = stores.reopen(later)
    assert (last.on_disk(0), last.on_disk(1)) == (0, PAGES)
    assert last.tiers(0) == []


def test_a_page_found_corrupt_leaves_the_disk_before_the_answer(stores: DiskStores) -> None:
    """And what comes after it."""
    store = stores.open(verify_rate=1.0)
    store.write(0)
    [slot, *_] = store.world.cache.namespaces[store.namespace_id].index.nodes[1].slots
    store.world.arenas.write_all([(slot, memoryview(bytes(store.world.layout.page_bytes)))])
    with own_logs() as logs:
        assert page_count(store.ask(0)) == 0
    assert [each["event"] for each in logs] == ["page_corrupt"]
    assert store.on_disk(0) == 0
    assert stores.reopen(store).on_disk(0) == 0


def test_a_disk_that_does_not_forget_is_an_alarm(stores: DiskStores) -> None:
    """The removal is made where it can be, and somebody is told what may come back."""
    store = stores.open()
    store.write(0)
    store.slab._tables.fail(OSError("a disk"))
    with own_logs() as logs:
        store.world.store.evict_prefix(store.caller.identity, store.namespace_id, b"")
    assert [each["event"] for each in logs] == ["tier3_removal_failed"]
    assert store.tier.state is TierState.FAILED
    assert store.tiers(0) == []
    store.write(0)
    assert (store.tiers(0), store.on_disk(0)) == ([1], 0)


def test_pages_that_left_the_index_meanwhile_are_not_written(stores: DiskStores) -> None:
    """A removal between the plan and the write has the write left out."""

    class Removing:
        """Removes everything as it is asked about the first page."""

        def __init__(self) -> None:
            self.store: DiskStore | None = None

        def touch(self, digest: bytes) -> bool:
            """Removes, and says that the page is worth a write."""
            store, self.store = self.store, None
            if store is not None:
                caller, namespace_id = store.caller.identity, store.namespace_id
                store.world.store.evict_prefix(caller, namespace_id, b"")
            return bool(digest)

    admission = Removing()
    store = admission.store = stores.open(admission=admission)
    store.write(0)
    assert store.slab.use().counters.written_pages == 0
    store.write(0)
    assert store.on_disk(0) == PAGES


def test_writes_and_removals_are_ordered(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are submitted under one gate, so a removal finds the writes under way."""
    store = stores.open()
    gated: list[tuple[str, bool]] = []
    for name in ("write", "remove", "remove_namespace"):

        def submit(*asked: Any, name: str = name, **how: Any) -> Any:  # noqa: ANN401
            gated.append((name, store.tier.gate.locked()))
            return getattr(GatedSlab, name)(store.slab, *asked, **how)

        monkeypatch.setattr(store.slab, name, submit)
    store.write(0)
    tokens = store.sequence(0).tokens[: 4 * store.world.layout.page_tokens]
    for each in (tokens, b""):
        store.world.store.evict_prefix(store.caller.identity, store.namespace_id, each)
    assert {name for name, _ in gated} == {"write", "remove", "remove_namespace"}
    assert all(locked for _, locked in gated)


def test_a_removal_that_hangs_is_waited_for_once(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later call does not wait for it again, and a log line says so once."""
    store = stores.open()
    store.write(0)
    monkeypatch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", 0.01)
    late: list[Any] = []
    monkeypatch.setattr(store.slab, "remove_namespace", lambda *asked: late.append(asked[1]))
    removals = store.world.store.tier3.removals
    with own_logs() as logs:
        store.world.store.evict_prefix(store.caller.identity, store.namespace_id, b"")
        assert not removals.settle()
    assert [(each["event"], each["store"]) for each in logs] == [("tier3_removal_failed", "slab")]
    for each in late:
        each(True)  # noqa: FBT003  # as the slab tells
    assert removals.settle()


def test_a_removal_behind_one_that_hangs_is_made_all_the_same(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages cannot return once the disk goes on, and loads of the others begin again."""
    store = stores.open()
    store.write(0)
    store.write(1)
    monkeypatch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", 0.01)
    with monkeypatch.context() as hanging:
        hanging.setattr(store.slab, "remove_namespace", lambda *_: None)
        store.tier.remove([], [bytes(32)])
    tokens = store.sequence(0).tokens[: 4 * store.world.layout.page_tokens]
    store.world.store.evict_prefix(store.caller.identity, store.namespace_id, tokens)
    assert store.world.cache.namespaces[store.namespace_id].removing == (0,)
    later = stores.reopen(store)
    assert (later.on_disk(0), later.on_disk(1)) == (0, PAGES)


def test_a_caller_waits_for_the_removals_that_another_submits(stores: DiskStores) -> None:
    """Otherwise a load could find, after the answer, what the other has in hand."""
    store = stores.open()
    store.write(0)
    removals = store.world.store.tier3.removals
    waiting = Thread(target=removals.settle, daemon=True)
    with store.tier.gate:
        store.world.cache.evict_prefix(store.caller.identity, store.namespace_id, b"")
        first = Thread(target=removals.settle, daemon=True)
        first.start()
        while any(store.world.cache.state.disk.removed):  # type: ignore[union-attr]
            first.join(0.001)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    for each in (first, waiting):
        each.join(LIMIT)
        assert not each.is_alive()
    assert store.on_disk(0) == 0


def test_a_removal_may_be_answered_late(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm is over once the disk has forgotten what it had to."""
    store = stores.open()
    store.write(0)
    monkeypatch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", 0.0)
    late: list[Any] = []
    monkeypatch.setattr(store.slab, "remove", lambda *asked: late.append(asked[1]))
    store.tier.remove([PageKey(bytes(32), bytes(32))], [])
    assert not store.tier.settled()
    assert store.tier.state is TierState.FAILED
    for each in late:
        each(True)  # noqa: FBT003  # as the slab tells
    assert store.tier.state is TierState.OPEN
