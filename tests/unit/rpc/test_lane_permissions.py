"""The methods of a lane, called by their tenant, by another tenant and by an admin.

tests/unit/rpc/test_permissions.py has the same cases over gRPC, and shares the table.
"""

import pytest

from kvstore.rpc.lane.calls import METHODS
from stores.permission_stage import NOTHING, OTHER_UID, OWNER_UID, Stage
from stores.permission_table import PERMISSIONS, Names
from stores.rpc_world import ADMIN_UID, Server

PATHS = [each.removeprefix("/") for each in METHODS]


@pytest.fixture
def over() -> str:
    """Names lanes as the transport of the request path."""
    return "lane"


@pytest.fixture
def stage(server: Server) -> Stage:
    """Provides two tenants on a server."""
    return Stage(server)


@pytest.mark.parametrize("path", PATHS)
def test_a_tenant_may_do_with_its_own(stage: Stage, path: str) -> None:
    """A tenant's call about its own things ends as the table says."""
    ended = stage.call(path, stage.owned, OWNER_UID, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].own


@pytest.mark.parametrize("uid", [OTHER_UID, ADMIN_UID])
@pytest.mark.parametrize("path", PATHS)
def test_another_tenant_s_is_as_if_it_was_not_there(stage: Stage, path: str, uid: int) -> None:
    """Another uid learns and changes nothing, even with all ids and the lease's secret."""
    before = stage.owners_things()
    ended = stage.call(path, stage.owned, uid, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].other
    assert ended == stage.call(path, NOTHING, uid, stage.owner.secret)
    assert stage.owners_things() == before


@pytest.mark.parametrize("path", [each for each in PATHS if PERMISSIONS[each].under_own_lease])
def test_another_tenant_s_under_an_own_lease_is_as_if_it_was_not_there(
    stage: Stage, path: str
) -> None:
    """A member that names another tenant's things gets the same answer as for unknown ids."""
    before = stage.owners_things()
    lease_id = stage.other.lease_id
    taken, absent = (
        Names(lease_id, each.namespace_id, each.pin_id, each.reservation_id)
        for each in (stage.owned, NOTHING)
    )
    ended = stage.call(path, taken, OTHER_UID, stage.other.secret)
    assert ended.reason == PERMISSIONS[path].under_own_lease
    assert ended == stage.call(path, absent, OTHER_UID, stage.other.secret)
    assert stage.owners_things() == before
