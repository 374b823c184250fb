"""Tier 3 over page stores of each kind, whatever they do: no wrong page, and none that returns."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from page_stores import remote_tier, tier_machine
from page_stores.memory_page_store import MemoryPageStore

from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.service.page_io.loads import path_load
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.page_io.tier3 import Tier3
from kvstore.storage.page_store import PageKey, Presence

# Each example is a store of its own.
SHARE = 0.5


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (tier_machine.MemoryTier, SHARE),
        (tier_machine.ForgetfulMemoryTier, SHARE),
        (tier_machine.SlabTier, SHARE / 3),
        (remote_tier.RemoteTier, SHARE / 3),
    ],
    ids=["memory", "forgetful-memory", "slab", "remote"],
)
def test_tier_3_serves_what_was_written(
    machine: type[tier_machine.TierMachine],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Each matched page has its own bytes, no removed page returns, and no slot is lost."""
    tier_machine.COUNTS.clear()
    examples = max(int(settings().max_examples * share), 5)
    chosen = settings(stateful_step_count=40, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    counts = ", ".join(f"{name} {n}" for name, n in sorted(tier_machine.COUNTS.items()))
    record_property("summary", f"{machine.__name__} examples {examples}: {counts}")


def _removals_not_sent(patch: pytest.MonkeyPatch) -> None:
    """Removals reach no page store."""
    patch.setattr(SlowTier, "remove", lambda *_: None)


def _removed_pages_written(patch: pytest.MonkeyPatch) -> None:
    """A page that left the index between the plan and the write is written."""
    patch.setattr(DiskWrite, "is_stale", property(lambda write: not write.anchors))


def _misses_published(patch: pytest.MonkeyPatch) -> None:
    """Pages that were not read whole are published."""

    def every(_: object, checksums: Sequence[int | None]) -> list[int]:
        return [each or 0 for each in checksums]

    patch.setattr(path_load, "takewhile", every)


def _pending_pages_kept(patch: pytest.MonkeyPatch) -> None:
    """A page whose write is under way counts as stored."""
    there = MemoryPageStore.there

    def stored(store: MemoryPageStore, keys: Sequence[PageKey]) -> list[Presence]:
        return [Presence.STORED if each else each for each in there(store, keys)]

    patch.setattr(MemoryPageStore, "there", stored)


def _losses_ignored(patch: pytest.MonkeyPatch) -> None:
    """Nobody notes the pages that a page store lost."""
    patch.setattr(Tier3, "_lost", lambda *_, **__: None)


def _late_transfers(patch: pytest.MonkeyPatch) -> None:
    """A read goes on after its answer, in memory that is another page's by then."""
    make = MemoryPageStore.__init__

    def careless(store: MemoryPageStore, *parts: Any, **settings: Any) -> None:  # noqa: ANN401
        make(store, *parts, **settings, is_careless=True)

    patch.setattr(MemoryPageStore, "__init__", careless)


@pytest.mark.parametrize(
    "fault",
    [
        _removals_not_sent,
        _removed_pages_written,
        _misses_published,
        _pending_pages_kept,
        _losses_ignored,
        _late_transfers,
    ],
    ids=lambda fault: fault.__name__.strip("_").replace("_", "-"),
)
def test_a_fault_of_tier_3_is_caught(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The machine over memory fails, for the same examples each time."""
    fault(monkeypatch)
    chosen = settings(
        stateful_step_count=40,
        max_examples=300,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(tier_machine.MemoryTier, settings=chosen)
