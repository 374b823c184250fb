"""The processes that may have a lane, and the events that end one."""

import pytest

from kvstore.core.values.requests import Caller
from kvstore.rpc.lane import METHODS
from kvstore.v1 import attach_pb2, lease_pb2, prefix_cache_pb2
from stores.rpc_world import lane_answer, lane_call
from wire.attach_peer import AttachPeer
from wire.attach_rig import SECRET, AttachRig, has_ended, reason_of

RELEASE = METHODS.index("/kvstore.v1.PrefixCacheService/ReleasePins")
RENEW = METHODS.index("/kvstore.v1.LeaseService/RenewLease")


def ask_for_lane(peer: AttachPeer, caller: Caller) -> attach_pb2.ServerFrame:
    """Asks for a lane and returns the answer."""
    opening = attach_pb2.OpenLane(lease_id=caller.lease_id, lease_secret=SECRET)
    peer.send(attach_pb2.ClientFrame(open_lane=opening))
    return peer.receive()[0]


def lane_of(rig: AttachRig, caller: Caller) -> AttachPeer:
    """Opens a lane and returns it."""
    peer = rig.connect()
    peer.hello()
    assert list(ask_for_lane(peer, caller).lane_opened.methods) == list(METHODS)
    return peer


def test_an_attached_process_calls_over_a_lane(rig: AttachRig) -> None:
    """An attached process calls over a lane under any lease of its tenant with the right secret."""
    rig.serve()
    own, other = rig.lease(), rig.lease()
    rig.bound(own)
    lane = lane_of(rig, own)
    for caller in (own, other):
        renew = lease_pb2.RenewLeaseRequest(
            lease_id=caller.lease_id, store_epoch=rig.world.store.epoch
        )
        answer, _ = lane_call(lane.socket, RENEW, renew.SerializeToString())
        # The leases of this rig have one secret, which is what counts, as over gRPC.
        assert not answer.HasField("status")


@pytest.mark.parametrize("case", ["undeclared", "not attached", "bound", "no lanes", "no lease"])
def test_nobody_else_has_one(rig: AttachRig, case: str) -> None:
    """A process without the right to a lane is refused with the reason."""
    server = rig.serve()
    caller = rig.lease()
    peer = rig.connect()
    if case != "not attached":
        peer = rig.bound(caller) if case == "bound" else (rig.bound(caller), peer)[1]
    if case != "bound":
        peer.hello()
    if case == "undeclared":
        rig.world.store.grant(caller, ttl=300.0, display_name="test", features=())
    if case == "no lanes":
        server._lanes = None
        peer = rig.connect()
        peer.hello()
    if case == "no lease":
        rig.world.store.revoke(caller)
    expected = {
        "undeclared": "FEATURE_UNSUPPORTED",
        "not attached": "NOT_ATTACHED",
        "bound": "INVALID_FIELD",
        "no lanes": "FEATURE_UNSUPPORTED",
        "no lease": "LEASE_NOT_FOUND",
    }
    assert reason_of(ask_for_lane(peer, caller)) == expected[case]
    assert has_ended(peer)


def test_a_lane_ends_with_its_lease(rig: AttachRig) -> None:
    """A lane ends with its lease, even if its process has nothing mapped."""
    rig.serve()
    caller = rig.lease()
    rig.bound(caller)
    lane = lane_of(rig, caller)
    rig.world.store.revoke(caller)
    with pytest.raises(EOFError):
        lane_answer(lane.socket)


def test_a_lane_takes_no_place_of_a_connection(rig: AttachRig) -> None:
    """Lanes do not count as connections, so as many processes may attach with them as without."""
    rig.serve(max_connections=3)
    caller = rig.lease()
    rig.bound(caller)
    lanes = [lane_of(rig, caller) for _ in range(4)]
    empty = prefix_cache_pb2.ReleasePinsRequest(
        caller=prefix_cache_pb2.Caller(lease_id=caller.lease_id, store_epoch=rig.world.store.epoch)
    )
    for lane in lanes:
        answer, _ = lane_call(lane.socket, RELEASE, empty.SerializeToString())
        assert not answer.HasField("status")
