"""Quotas are data: one set a tenant, the default for all that are not named."""

import math

import pytest

from kvstore.core.values.limits import Quotas, QuotaTable


def test_a_tenant_that_is_not_named_has_the_default() -> None:
    """``of`` answers a tenant's own quotas, and the default for every other."""
    narrow = Quotas(leases=1)
    table = QuotaTable(Quotas(leases=7), {"narrow": narrow})
    assert table.of("narrow") is narrow
    assert table.of("other").leases == 7


def test_no_bound_of_memory_or_rate_unless_one_is_set() -> None:
    """A store without settings bounds what costs it memory of its own, and nothing else."""
    quotas = QuotaTable().of("anybody")
    assert quotas.tier1_bytes is None
    assert quotas.share_bytes is None
    assert quotas.requests_per_second is None
    assert min(quotas.leases, quotas.pins, quotas.named_pins) > 0


@pytest.mark.parametrize("name", ["tier1_bytes", "share_bytes", "leases", "pins", "named_pins"])
def test_a_bound_below_zero_is_refused(name: str) -> None:
    """A bound that cannot be meant is named."""
    with pytest.raises(ValueError, match=name):
        Quotas(**{name: -1})


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_lets_nothing_through_is_refused(rate: float) -> None:
    """A tenant that may ask nothing is one that is not let in at all."""
    with pytest.raises(ValueError, match="requests_per_second"):
        Quotas(requests_per_second=rate)


def test_rates_come_from_another_table() -> None:
    """All else stays, also of tenants that only one of the tables names."""
    ours = QuotaTable(Quotas(leases=7), {"a": Quotas(pins=1, requests_per_second=2.0)})
    theirs = QuotaTable(
        Quotas(leases=9, requests_per_second=5.0), {"b": Quotas(leases=1, requests_per_second=3.0)}
    )
    found = ours.with_rates_of(theirs)
    assert found.default == Quotas(leases=7, requests_per_second=5.0)
    assert found.of("a") == Quotas(pins=1, requests_per_second=5.0)
    assert found.of("b") == Quotas(leases=7, requests_per_second=3.0)


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        (QuotaTable(Quotas(requests_per_second=2.0)), False),
        (QuotaTable(Quotas(leases=1)), True),
        (QuotaTable(by_tenant={"a": Quotas(requests_per_second=1.0)}), False),
        (QuotaTable(by_tenant={"a": Quotas(named_pins=1)}), True),
    ],
)
def test_other_quotas_than_rates_are_told_apart(theirs: QuotaTable, *, differs: bool) -> None:
    """A rate may change while a store runs; whether anything else did is to be known."""
    assert QuotaTable().differs_beyond_rates(theirs) is differs
