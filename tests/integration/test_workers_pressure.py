"""Pins and eviction in a pool that is far too small, without one wrong page."""

from itertools import product

import pytest

from kvstore_client.testing import wait_until
from pages.stamped_pages import LAYOUT, Stamp, page_count, prompt
from processes.worker_fleet import POOL_SLOTS, Fleet, running_fleet
from processes.worker_process import LIMIT, WorkerProcess

HELD = prompt(1, 2)
LOOSE = prompt(3, 4)
# More than twice as many pages as the pool has slots, for each of two writers.
PRESSURE = {
    name: [prompt(number, end) for end in range(40)] for number, name in ((5, "b"), (6, "c"))
}
# A tree of three parts, each in three ways, and sixteen alone: 220 pages, for 64 slots.
WORKING_SET = [
    *(prompt(*parts) for parts in product((7, 8, 9), repeat=3)),
    *(prompt(part) for part in range(20, 36)),
]
MANY = 200


def press(writers: list[WorkerProcess]) -> int:
    """Lets writers fill the pool several times. Returns the number of pages they published."""
    for each in writers:
        each.tell("churn", PRESSURE[each.name], 1)
    return sum(each.answer()["published"] for each in writers)


def test_pinned_pages_hold_under_pressure(fleet: Fleet) -> None:
    """A held match keeps its bytes while other workers fill the pool again and again."""
    holder, *writers = (fleet.spawn(name) for name in "abc")
    for tokens in (HELD, LOOSE):
        assert holder.ask("write", tokens)["published"] == page_count(HELD)
    written = holder.ask("stamps", HELD)
    assert holder.ask("match", "held", HELD) == len(HELD) - 1
    holder.tell("watch", "held")
    published = press(writers)
    assert holder.stop() > 0
    assert published > 4 * POOL_SLOTS
    assert fleet.stats().counters.evicted_page_count > 4 * POOL_SLOTS

    # What was held is still cached, for all; what was not held is gone.
    for each in writers:
        assert each.ask("stamps", HELD) == written == holder.ask("check", "held")
        assert each.ask("peek", LOOSE) == 0

    # Released it may go, and under further pressure it does.
    holder.ask("release", "held")
    press(writers)
    assert [each.ask("peek", HELD) for each in (holder, *writers)] == [0, 0, 0]
    assert fleet.settled()


def test_a_pin_protects_a_path_as_deep_as_it_goes(fleet: Fleet) -> None:
    """A pin on the beginning of a path protects that part, even if a split comes later."""
    holder, *writers = (fleet.spawn(name) for name in "abc")
    holder.ask("write", HELD)
    beginning = prompt(1)
    assert holder.ask("match", "held", beginning) == len(beginning) - 1
    assert writers[0].ask("write", prompt(1, 3))["published"] == page_count(beginning)
    press(writers)
    assert holder.ask("peek", HELD) == len(beginning) - 1
    assert holder.ask("check", "held") == [Stamp("a", n + 1) for n in range(page_count(beginning))]


def test_a_reader_while_evicting_reads_only_its_own_tokens(fleet: Fleet) -> None:
    """Matches during eviction hit and miss, and each hit's pages are right."""
    reader, *writers = (fleet.spawn(name) for name in "abc")
    for each in writers:
        each.tell("churn", WORKING_SET, 0)
    reader.tell("read", WORKING_SET, seed=20)

    def enough() -> bool:
        """Returns whether there were many hits, misses and evictions."""
        hits, misses = 0, 0
        for lease in fleet.leases("a"):
            hits += lease.counters.full_hit_count + lease.counters.partial_hit_count
            misses += lease.counters.miss_count
        evicted = fleet.stats().counters.evicted_page_count
        return min(hits, misses) >= MANY and evicted >= 10 * POOL_SLOTS

    assert wait_until(enough, LIMIT)
    tally = reader.stop()
    assert min(tally["hits"], tally["misses"]) >= MANY
    for each in writers:
        each.stop()
    assert fleet.settled()


@pytest.mark.parametrize("extent_slots", [POOL_SLOTS, POOL_SLOTS // 4])
def test_a_pool_smaller_than_the_working_set_serves_all(extent_slots: int) -> None:
    """Workers with more prompts than fit find right pages only, and no slot is lost."""
    with running_fleet(extent_slots=extent_slots) as fleet:
        workers = [fleet.spawn(name) for name in "abc"]
        for each in workers:
            each.tell("churn", WORKING_SET, 6)
        tallies = [each.answer() for each in workers]
        assert all(each["looks"] == 6 * len(WORKING_SET) for each in tallies)
        assert min(sum(each[key] for each in tallies) for key in ("hits", "misses")) > 0

        # Memory is added beside the calls that lack it.
        assert wait_until(lambda: sum(fleet.slots()) == POOL_SLOTS)
        assert fleet.settled()
        stats = fleet.stats()
        (arena,), (namespace,) = stats.arenas, stats.namespaces
        assert arena.free_slot_count + arena.cached_slot_count == POOL_SLOTS
        assert namespace.cached_page_count == arena.cached_slot_count
        total = stats.counters
        assert total.inserted_page_count == sum(each["published"] for each in tallies)
        kept = total.inserted_page_count - total.evicted_page_count
        assert kept == namespace.cached_page_count
        for name in (
            "lookup_count",
            "matched_token_count",
            "inserted_page_count",
            "duplicate_page_count",
            "evicted_page_count",
            "exhausted_count",
        ):
            each_lease = [getattr(lease.counters, name) for lease in stats.leases]
            assert sum(each_lease) == getattr(total, name), name


def test_workers_killed_in_the_middle_of_it_leave_nothing(fleet: Fleet) -> None:
    """Three busy workers killed at any moment lose all their holds."""
    workers = [fleet.spawn(name) for name in "abc"]
    for each in workers:
        each.tell("churn", WORKING_SET, 0)

    def busy() -> bool:
        """Returns whether there is pressure and every worker takes part in it."""
        stats = fleet.stats()
        looking = [each for each in stats.leases if each.counters.lookup_count > 0]
        return stats.counters.evicted_page_count > POOL_SLOTS and len(looking) == len(workers)

    assert wait_until(busy)
    for each in workers:
        each.kill()
    assert fleet.left_nothing()
    survivor = fleet.spawn("survivor")
    for tokens in WORKING_SET:
        stamps = survivor.ask("stamps", tokens)
        assert survivor.ask("peek", tokens) == len(stamps) * LAYOUT.page_tokens
    assert survivor.ask("churn", WORKING_SET, 1)["published"] > 0
