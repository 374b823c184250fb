"""The values that a scrape shows of a store, and that nothing in it can break a scrape."""

import re

import pytest

from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Caller, MatchOptions, ReservationRequest
from kvstore.metrics.definitions import CATALOGUE, METRICS
from kvstore.metrics.metric import Kind
from kvstore.service.block_feed import KvEventUse
from kvstore.service.call_durations import CallTimes
from kvstore.succession.store_succession import SuccessionUse
from stores.metric_view import Scraped, view_of, without_namespaces
from stores.store_world import PAGE_TOKENS, World, sequence_of

NASTY = '<script>"\n} 1\nkvstore_ready 0\\'


def use(world: World, caller: Caller, namespace_id: bytes) -> None:
    """Miss, publish two pages, and hit them."""
    sequence = sequence_of(2)
    store = world.store
    store.match(caller, namespace_id, sequence, MatchOptions(1))
    store.reserve(caller, namespace_id, [ReservationRequest(1, start_page=0, page_count=2)])
    store.insert(caller, 1, sequence_of(2, rest=0))
    store.match(caller, namespace_id, sequence, MatchOptions(2))


def test_what_was_asked_and_given_is_shown(world: World) -> None:
    """By tenant, namespace and outcome."""
    caller = world.worker(name="engine")
    use(world, caller, world.open_namespace(caller))
    found = Scraped(view_of(world.store)).samples()
    [name] = {labels[1] for labels in found["kvstore_asked_tokens_total"]}
    of = ("uid-1", name)
    assert found["kvstore_lookups_total"] == {
        (*of, "full"): 1,
        (*of, "partial"): 0,
        (*of, "miss"): 1,
    }
    assert found["kvstore_asked_tokens_total"][of] == 2 * (2 * PAGE_TOKENS + 1)
    assert found["kvstore_matched_tokens_total"][of] == 2 * PAGE_TOKENS
    assert found["kvstore_inserted_pages_total"][of] == found["kvstore_cached_pages"][of] == 2
    assert found["kvstore_slots"]["1", "uid-1", "cached"] == 2
    assert found["kvstore_leases"]["uid-1", "engine", "active"] == 1
    assert found["kvstore_pins"]["uid-1", "engine"] == 1
    assert found["kvstore_reservations"]["uid-1", "engine"] == 1
    assert found["kvstore_attached_processes"]["uid-1", "engine"] == 1
    slots = sum(found["kvstore_slots"].values())
    assert slots == sum(each.slot_count for each in world.store.stats(caller.identity).arenas)


def test_what_outlives_the_server_is_shown(world: World) -> None:
    """With a holder only."""
    view = view_of(world.store)
    assert "kvstore_holder_behind" not in Scraped(view).samples()
    use = SuccessionUse("/run/holder", 1, 2, 10, 100, "full", "", 7, "")
    found = Scraped(view._replace(succession=use)).samples()
    names = ("holder_behind", "journal_used_bytes", "journal_bytes", "journal_given_up")
    shown = [found[f"kvstore_{name}"][()] for name in (*names, "recovered_pages")]
    assert shown == [2, 10, 100, 1, 7]


def test_kv_events_are_summed_over_tenants(world: World) -> None:
    """They are absent until there are some."""
    view = view_of(world.store)
    found = Scraped(view).samples()
    assert not [name for name in found if name.startswith("kvstore_kv_event_")]
    uses = [
        KvEventUse("a", "ipc:///a", "ipc:///b", 9, 1, 2, 3, 4, 5, 6),
        KvEventUse("b", "ipc:///c", "ipc:///d", 7, 10, 20, 30, 40, 50, 60),
    ]
    found = Scraped(view._replace(kv_events=uses)).samples()
    names = ("batches_total", "lost_changes_total", "snapshots_total", "replays_total")
    shown = [found[f"kvstore_kv_event_{name}"][()] for name in (*names, "last_batch_number")]
    assert shown == [11, 44, 55, 66, 9]
    assert found["kvstore_kv_event_copies_total"] == {("stored",): 22, ("removed",): 33}


def test_names_that_others_chose_break_nothing(world: World) -> None:
    """Each line is one line, and what they say of metrics is not believed."""
    caller = world.worker(tenant=NASTY, name=NASTY)
    identity = NamespaceIdentity(b"m", display_name=NASTY)
    world.store.open_namespace(caller, identity, world.layout)
    scraped = Scraped(view_of(world.store))
    found = scraped.samples()
    assert found["kvstore_ready"] == {(): 1}
    shown = NASTY.replace("\n", "?")
    assert (shown, shown, "active") in found["kvstore_leases"]
    assert (shown, shown) in found["kvstore_cached_pages"]
    assert scraped.openmetrics().endswith("# EOF\n")


def test_namespaces_of_one_name_are_one_series(world: World) -> None:
    """Two adapters that are called alike do not end a scrape; nor does a thousand of them."""
    caller = world.worker()
    for number in range(40):
        name = "twin" if number < 2 else f"n{number}"
        identity = NamespaceIdentity(b"m", adapter_digest=bytes([number]), display_name=name)
        namespace = world.store.open_namespace(caller, identity, world.layout)
        world.store.match(caller, namespace.namespace_id, sequence_of(1), MatchOptions(number + 1))
    found = Scraped(view_of(world.store)).samples()
    missed = {labels: n for labels, n in found["kvstore_lookups_total"].items() if n}
    assert missed["uid-1", "twin", "miss"] == 2
    assert missed["uid-1", "other", "miss"] == 40 - 17
    assert sum(missed.values()) == 40


def test_what_a_deleted_namespace_counted_stays(world: World) -> None:
    """A counter never falls."""
    caller = world.worker()
    use(world, caller, world.open_namespace(caller))
    scraped = Scraped(view_of(world.store))
    before = scraped.samples()
    scraped.view = without_namespaces(scraped.view)
    for _ in range(2):
        after = scraped.samples()
        assert after["kvstore_lookups_total"] == before["kvstore_lookups_total"]
        assert "kvstore_cached_pages" not in after


def test_what_a_namespace_counted_last_is_not_lost(world: World) -> None:
    """Lookups after the last scrape, or of a namespace that no scrape saw, are in ``other``."""
    caller = world.worker()
    seen = world.open_namespace(caller)
    scraped = Scraped(view_of(world.store))
    name = next(iter(scraped.samples()["kvstore_cached_pages"]))[1]
    world.store.match(caller, seen, sequence_of(2), MatchOptions(1))
    scraped.view = view_of(world.store)
    assert scraped.samples()["kvstore_lookups_total"]["uid-1", name, "miss"] == 1
    world.store.match(caller, seen, sequence_of(2), MatchOptions(2))
    world.store.delete_namespace(caller.identity, seen)
    unseen = world.open_namespace(caller)
    world.store.match(caller, unseen, sequence_of(2), MatchOptions(3))
    world.store.delete_namespace(caller.identity, unseen)
    world.open_namespace(caller)
    scraped.view = view_of(world.store)
    for _ in range(2):
        found = scraped.samples()
        assert found["kvstore_lookups_total"]["uid-1", name, "miss"] == 1
        assert found["kvstore_lookups_total"]["uid-1", "other", "miss"] == 2
        assert sum(found["kvstore_asked_tokens_total"].values()) == 3 * (2 * PAGE_TOKENS + 1)
        assert ("uid-1", "other") not in found["kvstore_cached_pages"]


def test_calls_are_a_histogram(world: World) -> None:
    """By what they came over, method and outcome."""
    world.store.call_times["lane"] = times = CallTimes()
    times.note("/kvstore.v1.PrefixCacheService/MatchPrefix", "OK", 0.0007)
    world.store.traffic.admit("uid-1")
    found = Scraped(view_of(world.store)).samples()
    by = "lane", "MatchPrefix", "OK"
    assert found["kvstore_call_duration_seconds_count"] == {by: 1}
    assert found["kvstore_call_duration_seconds_sum"] == {by: 0.0007}
    buckets = found["kvstore_call_duration_seconds_bucket"]
    assert buckets[*by, "0.000512"] == 0
    assert buckets[*by, "0.001024"] == buckets[*by, "+Inf"] == 1
    assert found["kvstore_requests_total"] == {("uid-1",): 1}
    assert found["kvstore_thread_failures_total"] == {("reaper",): 2}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_would_have_it(metric: object) -> None:
    """Ours by its first word, a counter by its last, and with something to do about it."""
    assert metric in METRICS
    kind, name, meaning, wrong, series = metric  # type: ignore[misc, attr-defined]
    assert re.fullmatch(r"kvstore(_[a-z0-9]+)+", name)
    assert name.endswith("_total") == (kind is Kind.COUNTER)
    assert len(set(series.labels)) == len(series.labels)
    for text in (meaning, wrong):
        assert text.endswith(".")
        assert "|" not in text


def test_no_metric_is_there_twice() -> None:
    """Each area has its own."""
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) == sum(map(len, CATALOGUE.values()))
