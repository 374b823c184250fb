"""Calls that a client sends over a lane before the earlier ones are answered."""

import pytest

from kvstore.rpc.lane.connection import HotLane
from kvstore.rpc.lane.server import METHODS, MOST_AT_ONCE
from kvstore.v1 import prefix_cache_pb2 as pb
from stores.rpc_world import OpenLane, Server, lane_answer, lane_frame, nothing, reason, tokens

RELEASE = METHODS.index("/kvstore.v1.PrefixCacheService/ReleasePins")
MATCH = METHODS.index("/kvstore.v1.PrefixCacheService/MatchPrefix")


def test_calls_that_come_together_are_answered_in_order(
    server: Server, open_lane: OpenLane
) -> None:
    """Calls sent at once are answered in order, however many, refused ones included."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, tokens(*range(8)), 1)
    lane = open_lane(worker)
    calls = []
    for number in range(1, 1 + 4 * MOST_AT_ONCE):
        request = pb.MatchPrefixRequest(
            caller=worker.caller(),
            namespace_id=namespace_id,
            sequence=pb.Sequence(tokens=tokens(*range(9))),
            pin_id=number,
        )
        calls += [
            (MATCH, request.SerializeToString()),
            (MATCH, nothing(worker)),
            (RELEASE, nothing(worker)),
        ]
    lane.sendall(b"".join(lane_frame(method, body) for method, body in calls))
    for _ in range(4 * MOST_AT_ONCE):
        head, body = lane_answer(lane)
        assert reason(head) == "OK"
        assert pb.MatchPrefixResponse.FromString(body).match.matched_token_count == 8
        assert [reason(lane_answer(lane)[0]) for _ in range(2)] == ["INVALID_FIELD", "OK"]


def test_a_lane_that_has_more_makes_way_for_those_that_wait(
    server: Server, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next call goes to the end of its queue then, and no answer is kept back meanwhile."""
    assert server.lanes is not None
    monkeypatch.setattr(type(server.lanes._fair), "has_waiting", property(lambda _: True))
    worker = server.worker()
    lane = open_lane(worker)
    held: list[bytes] = []
    monkeypatch.setattr(HotLane, "hold", lambda _, *answer: held.append(answer))
    lane.sendall(lane_frame(RELEASE, nothing(worker)) * 5)
    assert [reason(lane_answer(lane)[0]) for _ in range(5)] == ["OK"] * 5
    assert held == []
