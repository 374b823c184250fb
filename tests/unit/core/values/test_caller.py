"""The identity and the lease of a caller."""

from core.core_builders import ADMIN, OWNER
from kvstore.core.values.requests import Caller, Identity


def test_a_tenant_sees_its_own() -> None:
    """Things of one's own tenant exist, those of another don't."""
    assert OWNER.sees(OWNER.tenant)
    assert not OWNER.sees("tenant-b")
    assert not OWNER.sees("")


def test_an_admin_sees_everything() -> None:
    """Things of any tenant exist for an admin."""
    assert ADMIN.sees("tenant-b")
    assert ADMIN.sees(ADMIN.tenant)


def test_no_one_is_admin_by_default() -> None:
    """An identity made from a tenant alone has no more rights than that tenant."""
    assert not Identity("tenant-a").admin


def test_an_identity_cannot_be_changed() -> None:
    """Identities and callers are values: equal by content, usable as keys."""
    assert {Identity("a"), Identity("a"), Identity("a", admin=True)} == {
        Identity("a"),
        Identity("a", admin=True),
    }
    callers = [Caller(OWNER, b"id", b"secret", epoch) for epoch in (1, 1, 2, None)]
    assert len(set(callers)) == 3
