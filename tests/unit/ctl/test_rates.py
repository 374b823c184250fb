"""Changes between two snapshots, by the store's clock."""

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_ctl.top.rates import change_between, counted_here, overall

SPACE = b"\x01" * 16
LEASE = b"\x02" * 16


def snapshot(
    uptime: int, asked: int, *, epoch: int = 1, saved: int = 0
) -> store_pb2.GetStatsResponse:
    """Returns a snapshot of a store whose counters all come from one namespace and one lease."""
    counters = {
        "lookup_count": asked // 10,
        "asked_token_count": asked,
        "matched_token_count": saved // 2,
        "copied_token_count": saved - saved // 2,
        "inserted_page_count": asked // 5,
        "evicted_page_count": asked // 20,
        "returned_page_count": asked // 50,
    }
    return store_pb2.GetStatsResponse(
        store_epoch=epoch,
        uptime={"seconds": uptime, "nanos": 500_000_000},
        counters=counters,
        namespaces=[{"namespace_id": SPACE, "counters": counters}],
        leases=[{"lease_id": LEASE, "tenant": "t", "counters": counters}],
    )


def test_rates_are_by_the_store_s_uptime() -> None:
    """Rates use the store's four seconds, independent of this host's clocks."""
    change = change_between(snapshot(10, 100, saved=20), snapshot(14, 300, saved=120))
    for each in (change.whole, change.namespaces[SPACE], change.leases["t", LEASE]):
        assert (each.seconds, each.asked_tokens, each.saved_tokens) == (4.0, 200, 100)
        assert (each.hit_rate, each.thrash) == (0.5, 0.1)
        assert each.per_second(each.lookups) == 5.0
        assert each.per_second(each.evicted_pages) == 2.5


def test_no_change_has_no_rates() -> None:
    """No hit rate exists without lookups, and no rate without elapsed time."""
    change = change_between(snapshot(10, 100), snapshot(10, 100))
    assert (change.whole.hit_rate, change.whole.thrash) == (None, None)
    assert change.whole.per_second(7) == 0.0


def test_a_store_that_was_started_anew_counts_from_its_start() -> None:
    """All counts of a new epoch are new, because counters never decrease."""
    change = change_between(snapshot(1000, 5000), snapshot(2, 100, epoch=2, saved=50))
    assert (change.whole.seconds, change.whole.asked_tokens) == (2.5, 100)
    assert change.namespaces[SPACE].saved_tokens == 50


def test_what_was_not_there_before_counts_whole() -> None:
    """A namespace or lease that is new since the last snapshot counts with all its counters."""
    before = snapshot(10, 100)
    del before.namespaces[:], before.leases[:]
    change = change_between(before, snapshot(14, 300))
    assert change.namespaces[SPACE].asked_tokens == 300
    assert change.leases["t", LEASE].asked_tokens == 300


def test_deleted_namespaces_are_not_counted() -> None:
    """The sums include existing namespaces alone, unlike the store's own counters."""
    stats = snapshot(9, 100, saved=30)
    stats.namespaces.append(stats.namespaces[0])
    stats.counters.asked_token_count = 999
    assert counted_here(stats).asked_token_count == 200
    assert overall(counted_here(stats), 1.0).hit_rate == 0.3
    assert counted_here(store_pb2.GetStatsResponse()) == lease_pb2.CacheCounters()


def test_overall_is_since_the_start() -> None:
    """Overall means all counters over all of the uptime."""
    whole = overall(snapshot(9, 100, saved=30).counters, 9.5)
    assert (whole.hit_rate, whole.seconds) == (0.3, 9.5)
