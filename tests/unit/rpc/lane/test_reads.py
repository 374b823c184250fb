"""Lanes read whole calls, however their bytes arrive, and none that did not arrive."""

import select
import socket
from threading import Thread
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kvstore.rpc.lane import LENGTHS, LOOK_BYTES, METHODS, SMALL_BYTES, Frame, HotLane, Party
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.values.packed_tokens import sequence_pieces
from stores.rpc_world import OpenLane, Server, lane_answer, lane_frame, nothing, reason, tokens

MATCH = METHODS.index("/kvstore.v1.PrefixCacheService/MatchPrefix")
RELEASE = METHODS.index("/kvstore.v1.PrefixCacheService/ReleasePins")
PARTY = Party(0, b"", b"", 0)


class Sent(NamedTuple):
    """A call as its client sends it."""

    head: bytes
    body: bytes

    @property
    def frame(self) -> bytes:
        """Its bytes."""
        return LENGTHS.pack(len(self.head), len(self.body)) + self.head + self.body


def with_tokens(count: int) -> bytes:
    """Returns a request's body that ends with so many tokens."""
    front = pb.MatchPrefixRequest(pin_id=count).SerializeToString()
    return front + b"".join(sequence_pieces(tokens(*range(count))))


def filled(length: int) -> bytes:
    """Returns a body that is no message."""
    return bytes(each % 251 for each in range(length))


LENGTHS_NEAR = st.one_of(
    st.integers(0, 40),
    st.integers(SMALL_BYTES - 40, SMALL_BYTES + 40),
    st.integers(LOOK_BYTES - 40, LOOK_BYTES + 40),
)
CALLS = st.builds(
    Sent,
    st.binary(max_size=20),
    st.one_of(
        st.builds(filled, LENGTHS_NEAR), st.builds(with_tokens, st.integers(1, LOOK_BYTES // 2))
    ),
)


@given(st.lists(CALLS, min_size=1, max_size=6), st.data())
def test_calls_are_read_whole_and_in_order(calls: list[Sent], data: st.DataObject) -> None:
    """However the bytes are cut into pieces, each call is read once, and nothing after them."""
    sent = b"".join(each.frame for each in calls)
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=8).map(sorted))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    near, far = socket.socketpair()
    lane = HotLane(far, PARTY, max_body_bytes=1 << 20)

    def send() -> None:
        for each in pieces:
            near.sendall(each)

    sender = Thread(target=send)
    sender.start()
    read: list[Frame] = []
    while len(read) < len(calls):
        if lane.has_next():
            read.append(lane.read())
        else:
            select.select([far], [], [])
    sender.join()
    assert [Sent(each.head, each.whole_body) for each in read] == calls
    assert not lane.has_next()
    assert not lane.may_have_more
    assert lane._received == b""
    assert not lane.is_gone()
    near.close()
    assert lane.is_gone()
    assert not lane.has_next()
    assert lane.may_be_gone
    lane.close()


def test_bytes_that_may_be_there_are_looked_for() -> None:
    """A lane that was not read to its end may have more."""
    near, far = socket.socketpair()
    lane = HotLane(far, PARTY, max_body_bytes=1 << 20)
    assert lane.may_have_more
    first, second = Sent(b"a", b""), Sent(b"b", filled(LOOK_BYTES))
    near.sendall(first.frame + second.frame)
    assert lane.has_next()
    assert lane.read() == Frame(*first)
    assert lane.may_have_more
    assert lane.read() == Frame(*second)
    assert lane.may_have_more
    assert not lane.has_next()
    assert not lane.may_have_more
    near.close()
    lane.close()


def test_all_calls_of_busy_lanes_are_answered(server: Server, open_lane: OpenLane) -> None:
    """Calls that come before, while and after a lane's earlier ones are made get their answers."""
    workers = [server.worker(uid=uid) for uid in range(3, 7)]
    opened = [(open_lane(each), lane_frame(RELEASE, nothing(each))) for each in workers]
    rounds = 200

    def send(lane: socket.socket, frame: bytes, number: int) -> None:
        for size in range(rounds):
            cut = (size + number) % len(frame)
            lane.sendall(frame[:cut])
            lane.sendall(frame[cut:])

    senders = [
        Thread(target=send, args=(lane, frame, number))
        for number, (lane, frame) in enumerate(opened)
    ]
    for each in senders:
        each.start()
    for lane, _ in opened:
        assert [reason(lane_answer(lane)[0]) for _ in range(rounds)] == ["OK"] * rounds
    for each in senders:
        each.join()
    assert server.lanes is not None
    assert server.lanes.failure_count == 0


def test_a_refused_call_costs_no_earlier_answer(server: Server, open_lane: OpenLane) -> None:
    """A call that came before one of a length over the limit is answered before the refusal."""
    worker = server.worker()
    lane = open_lane(worker)
    lane.sendall(lane_frame(RELEASE, nothing(worker)) + LENGTHS.pack(1, (1 << 32) - 1))
    assert [reason(lane_answer(lane)[0]) for _ in range(2)] == ["OK", "LIMIT_EXCEEDED"]


def test_a_large_call_takes_one_turn(server: Server, open_lane: OpenLane) -> None:
    """Its lane is in no queue behind it: the next call's deadline would begin before that came."""
    worker = server.worker()
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=worker.open_namespace(),
        pin_id=1,
        sequence={"tokens": tokens(*range(LOOK_BYTES))},
    )
    lane = open_lane(worker)
    assert server.lanes is not None
    *_, served = server.lanes._lanes.values()
    put, turns = server.lanes._put, []

    def noted(each: HotLane) -> None:
        turns.append(each)
        put(each)

    server.lanes._put = noted  # type: ignore[method-assign]
    for method, body in ((MATCH, request.SerializeToString()), (RELEASE, nothing(worker))):
        lane.sendall(lane_frame(method, body))
        assert reason(lane_answer(lane)[0]) == "OK"
    assert turns.count(served) == 2


def test_bytes_told_late_are_no_call(server: Server, open_lane: OpenLane) -> None:
    """An event for bytes that were read before leaves the lane as it is."""
    worker = server.worker()
    lane = open_lane(worker)
    assert server.lanes is not None
    [served] = server.lanes._lanes.values()
    served.is_queued = True
    server.lanes._put(served)
    server.lanes.look()
    for _ in range(3):
        lane.sendall(lane_frame(RELEASE, nothing(worker)))
        assert reason(lane_answer(lane)[0]) == "OK"
    assert server.lanes.failure_count == 0
