"""Every method, called by its tenant, by another, without a credential and by an admin.

Methods of the request path are called over lanes as well, with the same results. The expected
results are in tests/support/stores/permission_table.py, which docs/permissions.md shows.
"""

from collections.abc import Callable

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvstore.rpc.lane import METHODS as LANE_METHODS
from stores.permission_stage import (
    LIMIT,
    METHODS,
    NOTHING,
    OTHER_UID,
    OWNER_UID,
    PASSING,
    RANDOM,
    Stage,
    path_of,
    without,
)
from stores.permission_table import PERMISSIONS, Names
from stores.rpc_world import ADMIN_UID, Server

LANE_PATHS = [each.removeprefix("/") for each in LANE_METHODS]
# Ways to make each call.
WAYS = [
    *(("grpc", path) for path in PERMISSIONS),
    *(("lane", path) for path in LANE_PATHS),
]
# Callers that are no tenants of what they name. Over lanes an admin is like any other.
STRANGERS = [
    *((*way, OTHER_UID) for way in WAYS),
    *(("lane", path, ADMIN_UID) for path in LANE_PATHS),
]


@pytest.fixture
def stage(server: Server) -> Stage:
    """Provides two tenants on a server."""
    return Stage(server)


def test_every_method_is_classified(server: Server) -> None:
    """The table has exactly the methods that the server serves, so a new one must be added."""
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = stub.ServerReflectionInfo(iter([request]), timeout=LIMIT)
    served = [each.name for each in next(answers).list_services_response.service]
    answers.cancel()
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    found = {path_of(m) for name in served for m in pool.FindServiceByName(name).methods}
    assert found == set(PERMISSIONS)


@pytest.mark.parametrize(("over", "path"), WAYS, indirect=["over"])
def test_a_tenant_may_do_with_its_own(stage: Stage, path: str) -> None:
    """A tenant's call about its own things ends as the table says."""
    ended = stage.call(path, stage.owned, OWNER_UID, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].own


@pytest.mark.parametrize("path", PERMISSIONS)
def test_nobody_known_gets_in(stage: Stage, path: str) -> None:
    """A call without a credential ends at once and changes nothing of the owner's."""
    before = stage.owners_things()
    ended = stage.call(path, stage.owned, None, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].nobody
    assert ended == stage.call(path, NOTHING, None, b"no secret of anybody")
    assert stage.owners_things() == before


@pytest.mark.parametrize(("over", "path", "uid"), STRANGERS, indirect=["over"])
def test_another_tenant_s_is_as_if_it_was_not_there(stage: Stage, path: str, uid: int) -> None:
    """Another tenant learns and changes nothing, even with all ids and the lease's secret."""
    before = stage.owners_things()
    ended = stage.call(path, stage.owned, uid, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].other
    assert ended == stage.call(path, NOTHING, uid, stage.owner.secret)
    assert stage.owners_things() == before


@pytest.mark.parametrize(
    ("over", "path"),
    [way for way in WAYS if PERMISSIONS[way[1]].under_own_lease],
    indirect=["over"],
)
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


@pytest.mark.parametrize("path", PERMISSIONS)
def test_an_admin_may_look_and_administer(stage: Stage, path: str) -> None:
    """An admin sees all tenants' things, but acts under no tenant's lease, whatever its secret."""
    ended = stage.call(path, stage.owned, ADMIN_UID, stage.owner.secret)
    assert ended.reason == PERMISSIONS[path].admin


LISTS = ("GetStats", "GetCapabilities", "ListLeases", "ListNamespaces", "ListPins")


@pytest.mark.parametrize("name", LISTS)
def test_lists_and_statistics_show_nothing_of_another(
    start_server: Callable[..., Server], name: str
) -> None:
    """A tenant's lists and statistics are the same whether another tenant exists or not."""
    answers = []
    for furnished in (False, True):
        server = start_server()
        if furnished:
            Stage(server)
        worker = server.worker(uid=7)
        worker.open_namespace()
        stub = worker.named_pin if name == "ListPins" else worker.store
        stub = worker.lease if name == "ListLeases" else stub
        request = GetMessageClass(
            next(each for path, each in METHODS.items() if path.endswith(f"/{name}")).input_type
        )()
        answers.append(worker.ask(getattr(stub, name), request))
    alone, beside = (without(each, PASSING | RANDOM | {"lease_id", "pid"}) for each in answers)
    assert alone == beside
