"""Requests are counted by tenant, and those over the rate are refused."""

import pytest

from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.service.tenancy.rate_limit import Requests, TooManyRequests, Traffic
from stores.store_world import ManualClock


def make_traffic(rate: float | None, *, max_tenants: int = 100) -> tuple[Traffic, ManualClock]:
    """Returns the traffic of a store with this rate for everybody, and its clock."""
    clock = ManualClock()
    quotas = QuotaTable(Quotas(requests_per_second=rate))
    return Traffic(quotas, clock, max_tenants=max_tenants), clock


def admitted(traffic: Traffic, count: int, tenant: str = "a") -> int:
    """Returns how many of ``count`` requests at once came in."""
    came = 0
    for _ in range(count):
        try:
            traffic.admit(tenant)
        except TooManyRequests:
            continue
        came += 1
    return came


def test_without_a_rate_all_come_in() -> None:
    """Requests are counted all the same."""
    traffic, _ = make_traffic(None)
    assert admitted(traffic, 1000) == 1000
    assert traffic.requests("a") == Requests(1000, 0)


def test_a_second_s_worth_comes_in_at_once_and_then_the_rate() -> None:
    """A burst takes what a second brings; afterwards there is what time brought."""
    traffic, clock = make_traffic(5.0)
    assert admitted(traffic, 20) == 5
    clock.now += 0.4
    assert admitted(traffic, 20) == 2
    clock.now += 100.0
    assert admitted(traffic, 20) == 5
    assert traffic.requests("a") == Requests(60, 48)


def test_a_refusal_says_when_to_come_again() -> None:
    """The quota is named with its maximum; who comes back then is let in, not before."""
    traffic, clock = make_traffic(4.0)
    admitted(traffic, 4)
    with pytest.raises(TooManyRequests) as error:
        traffic.admit("a")
    assert error.value.metadata == {"quota": "requests_per_second", "maximum": "4"}
    assert error.value.retry_after_s == 0.25
    clock.now += 0.125
    assert admitted(traffic, 1) == 0
    clock.now += 0.125
    assert admitted(traffic, 2) == 1


def test_one_tenant_s_rate_is_no_other_s() -> None:
    """The tenant that asks too much is refused, and nobody else."""
    traffic, _ = make_traffic(2.0)
    assert admitted(traffic, 100, "a") == 2
    assert admitted(traffic, 2, "b") == 2
    assert traffic.requests("b") == Requests(2, 0)


def test_what_gives_back_comes_in_and_counts() -> None:
    """Releases are not refused, and put off what takes: for two seconds at most."""
    traffic, clock = make_traffic(3.0)
    for _ in range(1000):
        traffic.admit("a", always=True)
    assert traffic.requests("a") == Requests(1000, 0)
    assert admitted(traffic, 1) == 0
    clock.now += 1.0
    assert admitted(traffic, 1) == 0
    clock.now += 1.0
    assert admitted(traffic, 10) == 3


def test_a_rate_below_one_lets_one_through() -> None:
    """One request at least fits the bucket."""
    traffic, clock = make_traffic(0.5)
    assert admitted(traffic, 3) == 1
    clock.now += 2.0
    assert admitted(traffic, 3) == 1


def test_refusals_before_the_rate_are_counted() -> None:
    """A refused request counts, whatever refused it."""
    traffic, _ = make_traffic(None)
    traffic.refused("a")
    assert traffic.requests("a") == Requests(1, 1)


def test_the_table_is_bounded() -> None:
    """The table remembers the tenants that asked last."""
    traffic, _ = make_traffic(None, max_tenants=2)
    for tenant in "abac":
        traffic.admit(tenant)
    assert [traffic.requests(each).request_count for each in "abc"] == [2, 0, 1]


def test_a_rate_that_changes_counts_at_once() -> None:
    """A tenant with a new rate begins with the requests of a second. Others gain nothing."""
    clock = ManualClock()
    slow = Quotas(requests_per_second=2.0)
    traffic = Traffic(QuotaTable(slow), clock)
    assert (admitted(traffic, 9, "a"), admitted(traffic, 9, "b")) == (2, 2)
    traffic.change_rates(QuotaTable(slow, {"a": Quotas(requests_per_second=5.0)}))
    assert (admitted(traffic, 9, "a"), admitted(traffic, 9, "b")) == (5, 0)
    with pytest.raises(TooManyRequests) as error:
        traffic.admit("a")
    assert error.value.metadata["maximum"] == "5"
    traffic.change_rates(QuotaTable())
    assert (admitted(traffic, 9, "a"), admitted(traffic, 9, "b")) == (9, 9)
    traffic.change_rates(QuotaTable(slow))
    assert (admitted(traffic, 9, "a"), admitted(traffic, 9, "b")) == (2, 2)
