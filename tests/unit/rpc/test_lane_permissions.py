"""What a lane carries, called by its tenant, by another, and by an admin, as over gRPC.

tests/unit/rpc/test_permissions.py has the same over gRPC; the table is the same.
"""

import pytest

from kvstore.rpc.lane.server import METHODS
from stores.permission_stage import NOTHING, OTHER_UID, OWNER_UID, Stage
from stores.permission_table import PERMISSIONS, Names
from stores.rpc_world import ADMIN_UID, Server

PATHS = [each.removeprefix("/") for each in METHODS]


@pytest.fixture
def over() -> str:
    """Have the request path go over lanes."""
    return "lane"


@pytest.fixture
def stage(server: Server) -> Stage:
    """Provides two tenants on a server."""
    return Stage(server)


@pytest.mark.parametrize("path", PATHS)
def test_a_tenant_may_do_with_its_own(stage: Stage, path: str) -> None:
    """The call ends as the table says where all that it names is the caller's."""
    ended = stage.call(path, stage.owned, OWNER_UID, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].own


@pytest.mark.parametrize("uid", [OTHER_UID, ADMIN_UID])
@pytest.mark.parametrize("path", PATHS)
def test_another_tenant_s_is_as_if_it_was_not_there(stage: Stage, path: str, uid: int) -> None:
    """Who has all ids and the secret, and another uid, learns and changes nothing."""
    before = stage.owners_things()
    ended = stage.call(path, stage.owned, uid, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].other
    assert ended == stage.call(path, NOTHING, uid, stage.owner.secret)
    assert stage.owners_things() == before


@pytest.mark.parametrize("path", [each for each in PATHS if PERMISSIONS[each].under_own_lease])
def test_another_tenant_s_under_an_own_lease_is_as_if_it_was_not_there(
    stage: Stage, path: str
) -> None:
    """A member that names what another tenant has is told what it is told of nothing."""
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
