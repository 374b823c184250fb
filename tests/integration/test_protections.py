"""Three protections of the store, each tested with and without it.

A scenario finds no violation on the store as it is. On a store without the protection
(``broken_store``) it must find one.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kvstore_client.testing import START_TIMEOUT, running_store, wait_until
from pages.stamped_pages import WrongPage, page_count, prompt
from processes.broken_store import program
from processes.worker_fleet import ACTIVE, POOL_SLOTS, Fleet, pool_arguments, running_fleet

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
PRESSURE = [prompt(3, number) for number in range(20)]
TTL = 5.0
# Where nothing comes, for how long it is waited for. Where it comes it comes at once.
SHORT = 1.0

# Returns what went wrong; the seconds are how long it waits for what has to come.
Scenario = Callable[[Fleet, float], list[str]]


def writer_killed_between_reserve_and_insert(fleet: Fleet, patience: float) -> list[str]:
    """Kills a writer after its reservation and before it writes. Returns the violations."""
    witness = fleet.spawn("witness")
    writer = fleet.spawn("writer", faults="acquire.after:1=stop")
    writer.tell("write", TOKENS)
    assert wait_until(lambda: fleet.slots().reserved == PAGES)
    writer.signal(signal.SIGKILL)
    assert writer.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.leases("writer") == [])
    violations = []
    if not wait_until(lambda: fleet.slots().free == POOL_SLOTS, patience):
        violations.append(f"slots that nobody wrote did not come back: {fleet.slots()}")
    if witness.ask("peek", TOKENS):
        violations.append("what was never inserted is matched")
    try:
        witness.ask("stamps", TOKENS)
    except WrongPage as error:
        violations.append(f"and its bytes are nobody's: {error}")
    return violations


def reader_killed_while_it_holds_pins(fleet: Fleet, patience: float) -> list[str]:
    """Kills a reader long before its TTL. Returns the violations."""
    writer, reader = fleet.spawn("writer"), fleet.spawn("reader")
    writer.ask("write", TOKENS)
    assert reader.ask("match", "held", TOKENS) == len(TOKENS) - 1
    assert fleet.stats().pin_count == 1
    reader.signal(signal.SIGKILL)
    assert reader.wait_exit() == -signal.SIGKILL
    if not wait_until(lambda: fleet.stats().pin_count == 0, patience):
        return ["the dead reader's pin is still held"]
    return []


def reader_stopped_past_its_ttl(fleet: Fleet, patience: float) -> list[str]:
    """Stops a reader past its TTL, fills the pool, lets it read again, and returns violations."""
    del patience
    writer = fleet.spawn("writer")
    reader = fleet.spawn("reader", ttl=TTL)
    writer.ask("write", TOKENS)
    assert reader.ask("match", "held", TOKENS) == len(TOKENS) - 1
    reader.signal(signal.SIGSTOP)
    assert wait_until(lambda: ACTIVE not in [each.state for each in fleet.leases("reader")])
    writer.ask("churn", PRESSURE, 1)
    reader.signal(signal.SIGCONT)
    try:
        reader.ask("check", "held")
    except WrongPage as error:
        return [f"the reader's pages were overwritten: {error}"]
    return []


@contextmanager
def broken_fleet(fault: str) -> Iterator[Fleet]:
    """Runs a store with a fault, without checking what it leaves behind."""
    with running_store(*pool_arguments(), program=program(fault)) as store, Fleet(store) as fleet:
        yield fleet


def test_a_writer_killed_between_reserve_and_insert_never_has_its_slots_published() -> None:
    """The slots of a writer killed before its insert are freed and never matched."""
    with running_fleet() as fleet:
        assert writer_killed_between_reserve_and_insert(fleet, START_TIMEOUT) == []


def test_a_dead_reader_s_pins_return_at_once() -> None:
    """A dead reader's pins are released at its death, 300 s before its TTL."""
    with running_fleet() as fleet:
        assert reader_killed_while_it_holds_pins(fleet, START_TIMEOUT) == []


def test_a_living_reader_past_its_ttl_is_never_overwritten() -> None:
    """A living reader past its TTL finds every byte that it matched."""
    with running_fleet() as fleet:
        assert reader_stopped_past_its_ttl(fleet, START_TIMEOUT) == []


@pytest.mark.parametrize(
    ("scenario", "fault", "seen"),
    [
        (
            writer_killed_between_reserve_and_insert,
            "slots-of-the-dead-published",
            ["slots that nobody wrote", "what was never inserted", "and its bytes are nobody's"],
        ),
        (reader_killed_while_it_holds_pins, "deaths-not-watched", ["the dead reader's pin"]),
        (reader_stopped_past_its_ttl, "leases-end-at-their-ttl", ["the reader's pages"]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_without_its_protection_each_promise_is_seen_to_break(
    scenario: Scenario, fault: str, seen: list[str]
) -> None:
    """Without its protection each scenario finds the violation."""
    with broken_fleet(fault) as fleet:
        violations = scenario(fleet, SHORT)
    assert len(violations) == len(seen), violations
    for violation, beginning in zip(violations, seen, strict=True):
        assert violation.startswith(beginning)


def test_a_store_that_evicts_what_is_pinned_is_seen() -> None:
    """A holder under pressure finds a page that is not its own."""
    with broken_fleet("pinned-slots-recycled") as fleet:
        holder, writer = fleet.spawn("holder"), fleet.spawn("writer")
        holder.ask("write", TOKENS)
        holder.ask("match", "held", TOKENS)
        holder.tell("watch", "held")
        writer.tell("churn", PRESSURE, 0)
        with pytest.raises(WrongPage):
            holder.answer()


def test_a_store_that_recycles_reserved_slots_at_the_ttl_is_seen() -> None:
    """A living worker past its TTL finds others' pages in the slots that it had reserved."""
    with broken_fleet("leases-end-at-their-ttl") as fleet:
        stopped, writer = fleet.spawn("stopped", ttl=TTL), fleet.spawn("writer")
        stopped.ask("acquire", "open", TOKENS)
        stopped.ask("fill", "open")
        assert stopped.ask("own_pages_are_untouched", "open")
        stopped.signal(signal.SIGSTOP)
        assert wait_until(lambda: not fleet.leases("stopped"))
        writer.ask("churn", PRESSURE, 1)
        stopped.signal(signal.SIGCONT)
        with pytest.raises(WrongPage):
            stopped.ask("own_pages_are_untouched", "open")


def test_a_store_that_forgets_a_dead_worker_s_slots_is_seen() -> None:
    """The slots by state show the leak of a lease that ends without its reservations."""
    with broken_fleet("reservations-forgotten") as fleet:
        writer = fleet.spawn("writer", faults="insert.before:1=kill")
        writer.tell("write", TOKENS)
        assert writer.wait_exit() == -signal.SIGKILL
        assert wait_until(lambda: not fleet.leases("writer"))
        assert fleet.slots().reserved == PAGES
        assert not fleet.settled()
