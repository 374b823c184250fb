"""Two hosts over one page store: what one removed is never matched again."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from page_stores import host_machine, remote_tier

from kvstore.service.page_io.removals import Removals
from kvstore.service.page_io.slow_tier import SlowTier

# Each example is two stores.
SHARE = 0.25


@pytest.mark.parametrize(
    ("machine", "share"),
    [(host_machine.HostMachine, SHARE), (remote_tier.RemoteHostMachine, SHARE / 3)],
    ids=["memory", "remote"],
)
def test_what_a_host_removed_does_not_return(
    machine: type[host_machine.HostMachine],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Neither on it nor on the other one, from memory, from its disk or over a restart."""
    host_machine.COUNTS.clear()
    examples = max(int(settings().max_examples * share), 5)
    chosen = settings(stateful_step_count=40, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    counts = ", ".join(f"{name} {n}" for name, n in sorted(host_machine.COUNTS.items()))
    record_property("summary", f"examples {examples}: {counts}")
    assert host_machine.COUNTS["pages matched of the other host"]
    assert host_machine.COUNTS["removals"]


def _births_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A host that hears of a removal keeps its pages, and writes them again."""
    patch.setattr(Removals, "revised", lambda *_, **__: None)


def _disk_not_told(patch: pytest.MonkeyPatch) -> None:
    """A host that hears of a removal leaves the pages on its disk."""
    remove = SlowTier.remove

    def spare(tier: SlowTier, *owed: Any) -> None:  # noqa: ANN401
        if tier.is_shared:
            remove(tier, *owed)

    patch.setattr(SlowTier, "remove", spare)


@pytest.mark.parametrize(
    "fault",
    [_births_not_compared, _disk_not_told],
    ids=lambda fault: fault.__name__.strip("_").replace("_", "-"),
)
def test_a_fault_of_two_hosts_is_caught(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The machine fails, for the same examples each time."""
    fault(monkeypatch)
    chosen = settings(
        stateful_step_count=40,
        max_examples=300,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(host_machine.HostMachine, settings=chosen)
