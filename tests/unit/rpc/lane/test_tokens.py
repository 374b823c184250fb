"""Long requests over lanes; their tokens are received separately."""

from typing import Any

import pytest

from kvstore.rpc.lane import METHODS, SMALL_BYTES
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.values.packed_tokens import sequence_pieces
from stores.rpc_world import (
    OpenLane,
    Server,
    lane_answer,
    lane_call,
    lane_frame,
    nothing,
    reason,
    tokens,
)

MATCH, ACQUIRE, PREFETCH, INSERT, RELEASE = (
    METHODS.index(f"/kvstore.v1.PrefixCacheService/{name}")
    for name in ("MatchPrefix", "AcquirePrefix", "PrefetchPrefix", "InsertPrefix", "ReleasePins")
)


@pytest.mark.parametrize("method", [MATCH, ACQUIRE])
def test_tokens_that_end_a_long_request_are_its_sequence_s(
    server: Server, open_lane: OpenLane, method: int
) -> None:
    """A long request gets the same answer whether its tokens are received apart or parsed."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    cached = tokens(*range(8))
    worker.publish(namespace_id, cached, 1)
    long = cached + tokens(*range(100, 100 + SMALL_BYTES))
    kind, read = {
        MATCH: (pb.MatchPrefixRequest, pb.MatchPrefixResponse),
        ACQUIRE: (pb.AcquirePrefixRequest, pb.AcquirePrefixResponse),
    }[method]
    answers = []
    for pin_id, sent in ((11, {}), (12, {"tokens": long})):
        request: Any = kind(
            caller=worker.caller(), namespace_id=namespace_id, pin_id=pin_id, sequence=sent
        )
        if method == ACQUIRE:
            request.reservation_id = pin_id
        pieces = [request.SerializeToString(), *([] if sent else sequence_pieces(long))]
        head, body = lane_call(open_lane(worker), method, b"".join(pieces))
        assert reason(head) == "OK"
        answers.append(read.FromString(body).match)
    assert answers[0].matched_token_count == 8
    assert answers[0] == answers[1]


def test_a_long_prefetch_has_its_tokens_apart(server: Server, open_lane: OpenLane) -> None:
    """It gets the same answer whether its tokens are received apart or parsed."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    cached = tokens(*range(8))
    worker.publish(namespace_id, cached, 1)
    long = cached + tokens(*range(100, 100 + SMALL_BYTES))
    for sent in ({}, {"tokens": long}):
        request = pb.PrefetchPrefixRequest(
            caller=worker.caller(), namespace_id=namespace_id, sequence=sent
        )
        pieces = [request.SerializeToString(), *([] if sent else sequence_pieces(long))]
        head, body = lane_call(open_lane(worker), PREFETCH, b"".join(pieces))
        assert reason(head) == "OK"
        assert pb.PrefetchPrefixResponse.FromString(body).memory_token_count == 8


def test_a_long_body_of_a_call_without_a_sequence_is_parsed_as_it_is(
    server: Server, open_lane: OpenLane
) -> None:
    """Tokens that end a long body count as a sequence only if the method has a sequence."""
    worker = server.worker()
    request = pb.InsertPrefixRequest(caller=worker.caller(), reservation_id=7)
    long = tokens(*range(SMALL_BYTES))
    body = request.SerializeToString() + b"".join(sequence_pieces(long))
    assert reason(lane_call(open_lane(worker), INSERT, body)[0]) == "RESERVATION_NOT_FOUND"
    body = nothing(worker) + b"".join(sequence_pieces(long))
    assert reason(lane_call(open_lane(worker), RELEASE, body)[0]) == "LIMIT_EXCEEDED"


def test_a_long_request_that_is_late_keeps_nobody_waiting(
    server: Server, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of others are answered while the body of a long call has not begun to come."""
    # Longer than the test waits for an answer.
    monkeypatch.setattr("kvstore.rpc.lane.PATIENCE", 60.0)
    worker = server.worker()
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=worker.open_namespace(),
        pin_id=1,
        sequence={"tokens": tokens(*range(SMALL_BYTES))},
    )
    frame = lane_frame(MATCH, request.SerializeToString())
    late, other = open_lane(worker), open_lane(server.worker(uid=3))
    head_end = len(frame) - request.ByteSize()
    late.sendall(frame[:head_end])
    assert reason(lane_call(other, RELEASE, b"")[0]) == "INVALID_FIELD"
    late.sendall(frame[head_end:])
    assert reason(lane_answer(late)[0]) == "OK"
