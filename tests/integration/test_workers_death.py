"""After `kill -9` a worker's holds end by the proof of its death, whatever its TTL."""

import signal

import pytest

from kvstore_client.testing import wait_until
from pages.stamped_pages import LAYOUT, page_count, prompt
from processes.worker_fleet import POOL_SLOTS, Fleet, Slots

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
PRESSURE = [prompt(3, number) for number in range(40)]


def test_slots_come_back_from_between_reserve_and_insert(fleet: Fleet) -> None:
    """Slots that were written and not inserted are free after the kill, and were never matched."""
    witness = fleet.spawn("witness")
    assert witness.ask("peek", TOKENS) == 0
    before = fleet.slots()
    writer = fleet.spawn("writer", faults="insert.before:1=stop")
    writer.tell("write", TOKENS)
    assert wait_until(lambda: fleet.slots().reserved == PAGES)
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, PAGES)
    assert witness.ask("peek", TOKENS) == 0
    writer.signal(signal.SIGKILL)
    assert writer.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.slots() == before == Slots(POOL_SLOTS))
    assert fleet.leases("writer") == []
    assert witness.ask("peek", TOKENS) == 0
    assert witness.ask("write", TOKENS)["published"] == PAGES


def test_what_was_inserted_before_the_kill_stays(fleet: Fleet) -> None:
    """A writer killed before its third insert leaves two whole pages and no other slot."""
    writer = fleet.spawn("writer", faults="insert.before:3=kill")
    writer.tell("write", TOKENS, in_parts=True)
    assert writer.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.slots() == Slots(POOL_SLOTS - 2, 0, 2))
    witness = fleet.spawn("witness")
    assert witness.ask("peek", TOKENS) == 2 * LAYOUT.page_tokens
    assert [stamp.writer for stamp in witness.ask("stamps", TOKENS)] == ["writer"] * 2
    assert witness.ask("write", TOKENS)["published"] == PAGES - 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["acquire", "insert", "release"])
def test_a_kill_at_any_step_leaves_all_or_nothing(fleet: Fleet, step: str, moment: str) -> None:
    """A kill at any step of a call leaks no slot, and a prefix is cached whole or not at all."""
    writer = fleet.spawn("writer", faults=f"{step}.{moment}:1=kill")
    writer.tell("write", TOKENS)
    assert writer.wait_exit() == -signal.SIGKILL
    cached = PAGES if step == "release" or (step, moment) == ("insert", "after") else 0
    assert wait_until(lambda: fleet.slots() == Slots(POOL_SLOTS - cached, 0, cached))
    assert len(fleet.spawn("witness").ask("stamps", TOKENS)) == cached


def test_pins_of_a_killed_reader_come_back(fleet: Fleet) -> None:
    """Pages pinned only by a killed reader may be evicted after its death, and not before."""
    reader, writer = fleet.spawn("reader"), fleet.spawn("writer")
    writer.ask("write", TOKENS)
    assert reader.ask("match", "held", TOKENS) == len(TOKENS) - 1
    writer.ask("churn", PRESSURE, 1)
    assert writer.ask("peek", TOKENS) == len(TOKENS) - 1
    assert fleet.stats().pin_count == 1
    reader.signal(signal.SIGKILL)
    assert reader.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.stats().pin_count == 0)
    assert fleet.leases("reader") == []
    assert writer.ask("peek", TOKENS) == len(TOKENS) - 1
    writer.ask("churn", PRESSURE, 1)
    assert writer.ask("peek", TOKENS) == 0
