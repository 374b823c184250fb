"""All leases that have not ended, and the tombstones of those that have."""

import pytest

from core.core_builders import ADMIN, EPOCH, OWNER
from kvstore.core.leases.lease import Lease, LeaseState, Process
from kvstore.core.leases.lease_table import LeaseTable
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import IdReused, LeaseExpired, LeaseNotFound, QuotaExceeded, Tombstoned

OTHER = Identity("tenant-b")


def caller(name: str, identity: Identity = OWNER, secret: bytes = b"secret") -> Caller:
    """Returns who owns, or pretends to own, the lease of this name."""
    return Caller(identity, name.encode(), secret, EPOCH)


def make_table(
    *names: str, limits: Limits | None = None, quotas: Quotas | None = None
) -> LeaseTable:
    """Returns a table with leases of these names, granted at 100 seconds."""
    table = LeaseTable(limits or Limits(), QuotaTable(quotas or Quotas()))
    for name in names:
        table.grant(caller(name), name, 100.0).ttl = 10.0
    return table


def bind(table: LeaseTable, lease: Lease, *process_ids: int) -> None:
    """Attaches processes to a lease."""
    for process_id in process_ids:
        table.bind(lease, Process(process_id, 4000, 1000, lease))


def test_a_granted_lease_is_found() -> None:
    """The owner finds its lease under the id that it chose."""
    table = make_table("a", "b")
    assert table.find(caller("a")).display_name == "a"
    assert table.find(caller("b")).lease_id == b"b"


def test_granting_again_answers_the_same_lease() -> None:
    """A repeated grant makes no second lease."""
    table = make_table("a")
    lease = table.find(caller("a"))
    assert table.grant(caller("a"), "another name", 105.0) is lease
    assert (lease.display_name, lease.granted_at) == ("a", 100.0)
    assert len(table.leases) == 1


def test_leases_are_numbered_by_granting() -> None:
    """Numbers go up and are not given twice, though leases end."""
    table = make_table("a", "b")
    table.remove(table.find(caller("a")), 101.0)
    assert table.grant(caller("c"), "c", 102.0).number == 3


def test_an_id_in_use_is_no_one_elses() -> None:
    """With another secret an existing lease is neither granted nor found."""
    table, stranger = make_table("a"), caller("a", secret=b"guess")
    with pytest.raises(IdReused) as reused:
        table.grant(stranger, "a", 100.0)
    assert reused.value.metadata == {"lease_id": b"a".hex()}
    with pytest.raises(LeaseNotFound):
        table.find(stranger)


def test_the_same_id_of_another_tenant_is_another_lease() -> None:
    """An id that another tenant chose too makes no difference to either."""
    table = make_table("a")
    with pytest.raises(LeaseNotFound):
        table.find(caller("a", OTHER))
    granted = table.grant(caller("a", OTHER), "theirs", 100.0)
    assert granted is table.find(caller("a", OTHER))
    assert granted is not table.find(caller("a"))
    table.remove(granted, 101.0)
    with pytest.raises(Tombstoned):
        table.grant(caller("a", OTHER), "again", 102.0)
    assert table.grant(caller("a"), "a", 102.0).display_name == "a"


def test_an_unknown_id_and_a_wrong_secret_look_alike() -> None:
    """The error does not tell somebody who guesses an id if it exists."""
    table = make_table("a")
    with pytest.raises(LeaseNotFound) as wrong:
        table.find(caller("a", secret=b"guess"))
    with pytest.raises(LeaseNotFound) as unknown:
        make_table().find(caller("a"))
    assert str(wrong.value) == str(unknown.value)


def test_an_expired_lease_is_not_granted_again() -> None:
    """A lease past its TTL stays so, whatever its owner repeats."""
    table = make_table("a")
    table.find(caller("a")).state = LeaseState.EXPIRED
    with pytest.raises(LeaseExpired):
        table.grant(caller("a"), "a", 101.0)


def test_an_ended_lease_is_not_granted_again() -> None:
    """An id that ended is refused, by its tombstone."""
    table = make_table("a")
    table.remove(table.find(caller("a")), 100.0)
    with pytest.raises(Tombstoned) as error:
        table.grant(caller("a"), "a", 101.0)
    assert error.value.metadata == {"lease_id": b"a".hex()}
    with pytest.raises(LeaseNotFound):
        table.find(caller("a"))


def test_leases_are_bounded_by_tenant() -> None:
    """A tenant at its quota gets no more; another tenant does; one that ended makes room."""
    table = make_table("a", "b", quotas=Quotas(leases=2))
    with pytest.raises(QuotaExceeded) as error:
        table.grant(caller("c"), "c", 100.0)
    assert error.value.metadata == {"quota": "leases", "maximum": "2"}
    assert table.grant(caller("a"), "a", 100.0).lease_id == b"a"
    table.grant(caller("d", OTHER), "d", 100.0)
    table.remove(table.find(caller("a")), 100.0)
    table.grant(caller("c"), "c", 100.0)


def test_renewal_counts_from_now() -> None:
    """A renewed lease has its whole TTL again."""
    table = make_table("a")
    lease = table.find(caller("a"))
    assert table.renew(lease, 107.0) == 10.0
    assert table.overdue(116.9) == []
    assert table.overdue(117.0) == [lease]


def test_overdue_are_the_active_leases_past_their_ttl() -> None:
    """A lease is overdue from the end of its TTL on, until it was made to expire."""
    table = make_table("a", "b")
    late, early = table.find(caller("a")), table.find(caller("b"))
    late.ttl = 20.0
    assert table.overdue(109.9) == []
    assert table.overdue(110.0) == [early]
    assert table.overdue(120.0) == [late, early]
    early.state = LeaseState.EXPIRED
    assert table.overdue(120.0) == [late]


def test_a_bound_process_is_known_to_table_and_lease() -> None:
    """A process is found by its number, and under its lease."""
    table = make_table("a")
    lease = table.find(caller("a"))
    bind(table, lease, 1, 2)
    assert set(lease.processes) == set(table.processes) == {1, 2}
    assert table.processes[1].lease is lease


def test_processes_of_a_lease_are_bounded() -> None:
    """One process too many is refused, and is known to no one."""
    table = make_table("a", limits=Limits(max_processes_per_lease=2))
    lease = table.find(caller("a"))
    bind(table, lease, 1, 2)
    with pytest.raises(QuotaExceeded) as error:
        bind(table, lease, 3)
    assert error.value.metadata == {"quota": "processes_per_lease", "maximum": "2"}
    assert set(lease.processes) == set(table.processes) == {1, 2}


def test_a_dead_process_is_forgotten() -> None:
    """Unbinding returns the lease; a process that is not known has none."""
    table = make_table("a")
    lease = table.find(caller("a"))
    bind(table, lease, 1, 2)
    assert table.unbind(1) is lease
    assert set(lease.processes) == set(table.processes) == {2}
    assert table.unbind(1) is None


def test_an_ended_lease_leaves_no_process() -> None:
    """When a lease is removed its processes go with it, others stay."""
    table = make_table("a", "b")
    bind(table, table.find(caller("a")), 1, 2)
    bind(table, table.find(caller("b")), 3)
    table.remove(table.find(caller("a")), 100.0)
    assert set(table.processes) == {3}
    assert set(table.leases) == {(OWNER.tenant, b"b")}


def test_leases_are_listed_to_who_may_see_them() -> None:
    """A tenant sees its own by time of granting, an admin all."""
    table = make_table("b", "a")
    table.grant(caller("c", OTHER), "c", 101.0)
    assert [each.display_name for each in table.visible(OWNER)] == ["b", "a"]
    assert [each.display_name for each in table.visible(OTHER)] == ["c"]
    assert [each.display_name for each in table.visible(ADMIN)] == ["b", "a", "c"]


def test_a_rate_that_changed_is_the_tenant_s() -> None:
    """The new rates hold for tenants that have something, and for those that come later."""
    table = make_table("a")
    table.take_rates(QuotaTable(Quotas(requests_per_second=3.0)))
    assert table.tenant_of(OWNER).quotas.requests_per_second == 3.0
    assert table.tenant_of(OTHER).quotas.requests_per_second == 3.0
