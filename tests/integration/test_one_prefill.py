"""One worker computes a prompt that several want, and the others wait without holds."""

import json
import signal

import pytest
from typer.testing import CliRunner

from kvstore_client import ClientConfig, InFlight
from kvstore_client.testing import RunningStore, wait_until
from kvstore_ctl.app import app
from pages.stamped_pages import (
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    nothing_held,
    open_client,
    page_count,
    prompt,
)
from processes.worker_fleet import POOL_SLOTS, Slots, running_fleet

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.mark.parametrize("hot_lane", [True, False], ids=["lane", "grpc"])
def test_a_client_is_told_what_another_computes(store: RunningStore, *, hot_lane: bool) -> None:
    """Match, peek and acquire report a prefill in flight, and a yielding acquire holds nothing."""
    first, mine = open_client(store.runtime_dir)
    config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
    second, theirs = open_client(store.runtime_dir, config)
    tokens = [int(hot_lane) + 2] * 17
    whole = 4 * LAYOUT.page_tokens
    with first, second:
        assert theirs.peek_in_flight(tokens) is None
        with mine.acquire(tokens, total_page_count=4) as computing:
            assert computing.reservation is not None
            assert computing.in_flight is None
            with theirs.match(tokens) as match:
                assert match.in_flight == InFlight(whole, 0, pytest.approx(0, abs=LIMIT))
            with theirs.acquire(tokens, total_page_count=4, yield_to_in_flight=True) as yielded:
                assert yielded.in_flight is not None
                assert not yielded.holds
                assert yielded.match.token_count == 0
            computing.reservation.insert(tokens[: LAYOUT.page_tokens], position=0)
            found = theirs.peek_in_flight(tokens)
            assert found is not None
            assert (found.token_count, found.inserted_token_count) == (whole, LAYOUT.page_tokens)
            hung = {"yield_to_in_flight": True, "yield_idle": 0.0}
            assert wait_until(lambda: (theirs.peek_in_flight(tokens) or found).idle > 0)
            with theirs.acquire(tokens, total_page_count=4, **hung) as taken_over:
                assert taken_over.reservation is not None
            rest = tokens[LAYOUT.page_tokens : whole]
            computing.reservation.insert(rest, position=LAYOUT.page_tokens)
        with theirs.acquire(tokens, total_page_count=4, yield_to_in_flight=True) as after:
            assert (after.match.token_count, after.in_flight) == (whole, None)
        assert first.flush(LIMIT)
        assert second.flush(LIMIT)
        assert nothing_held(first)


def test_an_operator_sees_what_is_being_computed(store: RunningStore) -> None:
    """The prefill in flight is visible in peek for its prompt, in stats and in leases."""

    def said(*arguments: str) -> str:
        runtime_dir = ("--runtime-dir", str(store.runtime_dir))
        result = CliRunner().invoke(app, (*arguments, *runtime_dir), input=repr([8] * 17))
        assert result.exit_code == 0, result.output
        return result.stdout

    client, namespace = open_client(store.runtime_dir)
    with client, namespace.acquire([8] * 17, total_page_count=4) as computing:
        assert computing.reservation is not None
        assert "is computing them through token 16;" in said("peek", "--tokens", "-")
        assert json.loads(said("stats", "--json"))["in_flight_count"] == 1
        [lease] = json.loads(said("leases", client.admin.leases()[0].lease_id.hex(), "--json"))
        assert lease["in_flight_count"] == 1
        assert [each["announced_token_count"] for each in lease["holds"]] == [16]
        computing.reservation.insert([8] * 16, position=0)
        assert "computing" not in said("peek", "--tokens", "-")


def test_one_of_those_who_wait_takes_over_from_the_dead() -> None:
    """A waiting worker takes over when the computing one is killed. Each page is computed once."""
    with running_fleet() as fleet:
        writer = fleet.spawn("writer", faults="insert.before:2=stop")
        waiters = [fleet.spawn(name) for name in ("one", "two")]
        writer.tell("write_once", TOKENS)
        assert wait_until(lambda: fleet.slots().cached == 1)
        for waiter in waiters:
            waiter.tell("write_once", TOKENS)
        assert wait_until(lambda: fleet.stats().counters.yielded_count >= 2 * len(waiters))
        stats = fleet.stats()
        assert (stats.pin_count, stats.reservation_count, stats.in_flight_count) == (0, 1, 1)
        assert fleet.slots() == Slots(POOL_SLOTS - PAGES, PAGES - 1, 1)
        writer.signal(signal.SIGKILL)
        tallies = [waiter.answer() for waiter in waiters]
        assert all(tally["yields"] for tally in tallies)
        assert sum(tally["published"] for tally in tallies) == PAGES - 1
        counters = fleet.stats().counters
        assert (counters.inserted_page_count, counters.duplicate_page_count) == (PAGES, 0)
