"""PrefixCacheService over a real server."""

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.core.values.limits import Limits
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import store_pb2
from kvstore_client.values.page_runs import Pages
from stores.rpc_world import EPOCH, PAGE_TOKENS, Refused, Server, Worker, tokens

# Three pages, and one token to run.
PROMPT = tokens(*range(13))
PAGES = PROMPT[: 12 * 4]
pytestmark = pytest.mark.parametrize("over", ["grpc", "lane"], indirect=True)


def match_request(worker: Worker, namespace_id: bytes, /, **changes: Any) -> pb.MatchPrefixRequest:  # noqa: ANN401 - any field
    """Returns a match request for the prompt, with some fields changed."""
    fields: dict[str, Any] = {
        "caller": worker.caller(),
        "namespace_id": namespace_id,
        "sequence": pb.Sequence(tokens=PROMPT),
        "pin_id": 1,
    }
    return pb.MatchPrefixRequest(**(fields | changes))


def test_what_one_worker_inserts_another_matches(server: Server) -> None:
    """A match by one worker returns the runs that another worker's insert answered."""
    writer, reader = server.worker(), server.worker()
    namespace_id = writer.open_namespace()
    assert reader.open_namespace() == namespace_id
    acquired = writer.acquire(namespace_id, PROMPT)
    assert acquired.match == pb.PrefixMatch()
    assert acquired.grant.reservation_id == 2
    inserted = writer.insert(PAGES, 2)
    assert inserted.published_page_count == 3
    peeked = reader.ask(
        reader.prefix_cache.PeekPrefix,
        pb.PeekPrefixRequest(namespace_id=namespace_id, tokens=PROMPT),
    )
    assert peeked.matched_token_count == 3 * PAGE_TOKENS
    assert [(each.tier, each.page_count) for each in peeked.tiers] == [(1, 3)]
    matched = reader.ask(reader.prefix_cache.MatchPrefix, match_request(reader, namespace_id))
    assert matched.match.matched_token_count == 3 * PAGE_TOKENS
    assert list(matched.match.runs) == list(inserted.runs)
    (run,) = inserted.runs
    (granted,) = acquired.grant.runs
    reader.ask(
        reader.prefix_cache.ReleasePins,
        pb.ReleasePinsRequest(caller=reader.caller(), pin_ids=[1]),
    )
    caller = reader.caller()
    caller.slot_ranges = True
    again = match_request(reader, namespace_id, caller=caller, pin_id=3)
    (together,) = reader.ask(reader.prefix_cache.MatchPrefix, again).match.runs
    assert (together.slot_count, list(together.slot_indexes)) == (3, [run.slot_indexes[0]])
    assert list(run.slot_indexes) == list(granted.slot_indexes)[:3]
    assert len(granted.slot_indexes) == 4


def test_a_newer_client_gets_packed_slots_from_every_call(server: Server) -> None:
    """The answers of an acquire, an insert, a match and a reserve name the same slots."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    caller = worker.caller()
    caller.packed_slots = True
    acquired = worker.ask(
        worker.prefix_cache.AcquirePrefix,
        pb.AcquirePrefixRequest(
            caller=caller,
            namespace_id=namespace_id,
            sequence=pb.Sequence(tokens=PROMPT),
            pin_id=1,
            reservation_id=2,
            total_page_count=4,
        ),
    )
    inserted = worker.ask(
        worker.prefix_cache.InsertPrefix,
        pb.InsertPrefixRequest(caller=caller, reservation_id=2, sequence=pb.Sequence(tokens=PAGES)),
    )
    matched = worker.ask(
        worker.prefix_cache.MatchPrefix, match_request(worker, namespace_id, caller=caller)
    )
    reserved = worker.ask(
        worker.prefix_cache.ReservePages,
        pb.ReservePagesRequest(
            caller=caller,
            namespace_id=namespace_id,
            reservations=[pb.ReservationRequest(reservation_id=2, page_count=4)],
        ),
    )
    granted = Pages(acquired.grant.runs)
    assert len(granted) == 4
    assert Pages(reserved.grants[0].runs) == granted
    assert Pages(inserted.runs) == Pages(matched.match.runs) == granted[:3]
    answered = [acquired.grant, reserved.grants[0], inserted, matched.match]
    for run in (run for each in answered for run in each.runs):
        assert not run.slot_indexes
        assert not run.generations
        assert len(run.packed_generations) == 2 * len(run.packed_slot_indexes)


def test_holds_are_counted_and_go_back(server: Server) -> None:
    """A pin and a reservation are held until released and aborted. Repeating either succeeds."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, PAGES, 1)
    worker.ask(worker.prefix_cache.MatchPrefix, match_request(worker, namespace_id))
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    assert (stats.pin_count, stats.reservation_count) == (1, 1)
    for _ in range(2):
        worker.ask(
            worker.prefix_cache.ReleasePins,
            pb.ReleasePinsRequest(caller=worker.caller(), pin_ids=[1, 9]),
        )
        worker.ask(
            worker.prefix_cache.AbortReservation,
            pb.AbortReservationRequest(caller=worker.caller(), reservation_ids=[1, 9]),
        )
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    assert (stats.pin_count, stats.reservation_count) == (0, 0)


def test_an_acquire_that_gets_no_slots_answers_its_match(
    start_server: Callable[..., Server],
) -> None:
    """Without free slots an acquire answers only its match, and a reserve fails for now."""
    worker = start_server(slots=4).worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, PAGES, 1)
    acquired = worker.acquire(namespace_id, PROMPT, total_page_count=8)
    assert acquired.match.matched_token_count == 12
    assert not acquired.HasField("grant")
    with pytest.raises(Refused) as caught:
        worker.reserve(namespace_id, reservation_id=3, page_count=5)
    assert caught.value.reason == "POOL_EXHAUSTED"
    assert "google.rpc.RetryInfo" in caught.value.detail_types


def test_a_reservation_without_an_id_is_refused(server: Server) -> None:
    """Each call that names a reservation refuses id zero, which is an unset field."""
    worker = server.worker()
    namespace_id, caller, stub = worker.open_namespace(), worker.caller(), worker.prefix_cache
    sequence, nameless = pb.Sequence(tokens=PROMPT), pb.ReservationRequest(page_count=1)
    named: dict[str, Any] = {"caller": caller, "namespace_id": namespace_id}
    acquire = pb.AcquirePrefixRequest(**named, sequence=sequence, pin_id=1)
    reserve = pb.ReservePagesRequest(**named, reservations=[nameless])
    insert = pb.InsertPrefixRequest(caller=caller, sequence=sequence)
    calls = (stub.AcquirePrefix, acquire), (stub.ReservePages, reserve), (stub.InsertPrefix, insert)
    for method, request in calls:
        with pytest.raises(Refused) as caught:
            worker.ask(method, request)
        assert caught.value.metadata["field"].endswith("reservation_id")


@pytest.mark.parametrize(
    ("reason", "field", "changes"),
    [
        ("INVALID_FIELD", "caller", {"caller": None}),
        ("INVALID_FIELD", "sequence", {"sequence": None}),
        ("INVALID_FIELD", "namespace_id", {"namespace_id": b"short"}),
        ("INVALID_FIELD", "pin_id", {"pin_id": 0}),
        ("INVALID_FIELD", "lease_id", {"caller": pb.Caller(lease_id=b"x", store_epoch=EPOCH)}),
        ("INVALID_FIELD", "tokens", {"sequence": pb.Sequence(tokens=bytes(7))}),
        ("INVALID_FIELD", "position", {"sequence": pb.Sequence(tokens=PROMPT, position=1)}),
        ("LIMIT_EXCEEDED", None, {"sequence": pb.Sequence(tokens=bytes(4 * 33))}),
        ("LIMIT_EXCEEDED", None, {"sequence": pb.Sequence(position=2**32 - 1)}),
        ("NAMESPACE_NOT_FOUND", None, {"namespace_id": bytes(16)}),
        ("PIN_NOT_FOUND", None, {"sequence": pb.Sequence(tokens=PROMPT, base_pin_id=77)}),
        ("STALE_EPOCH", None, {"caller": pb.Caller(lease_id=bytes(16), store_epoch=1)}),
        ("LEASE_NOT_FOUND", None, {"caller": pb.Caller(lease_id=bytes(16), store_epoch=EPOCH)}),
    ],
)
def test_a_bad_match_is_refused_and_changes_nothing(
    start_server: Callable[..., Server], reason: str, field: str | None, changes: dict[str, Any]
) -> None:
    """A bad match is refused with its reason and field, and the statistics stay the same."""
    server = start_server(limits=Limits(max_tokens=32))
    worker = server.worker()
    namespace_id = worker.open_namespace()
    before = server.store.stats(server.credentials.identity_of(2))
    with pytest.raises(Refused) as caught:
        worker.ask(worker.prefix_cache.MatchPrefix, match_request(worker, namespace_id, **changes))
    assert caught.value.reason == reason
    assert caught.value.metadata.get("field") == field
    after = server.store.stats(server.credentials.identity_of(2))
    assert (after.counters, after.arenas, after.pin_count) == (
        before.counters,
        before.arenas,
        before.pin_count,
    )


@pytest.mark.parametrize(
    ("reason", "request_"),
    [
        ("INVALID_FIELD", pb.InsertPrefixRequest(page_checksums=[1])),
        ("INVALID_FIELD", pb.InsertPrefixRequest(sequence=pb.Sequence(position=2))),
        (
            "INSERT_EXCEEDS_RESERVATION",
            pb.InsertPrefixRequest(sequence=pb.Sequence(tokens=bytes(16 * 3))),
        ),
        (
            "PARENT_NOT_COVERED",
            pb.InsertPrefixRequest(sequence=pb.Sequence(tokens=bytes(16), position=4)),
        ),
    ],
)
def test_a_bad_insert_is_refused_and_publishes_nothing(
    server: Server, reason: str, request_: pb.InsertPrefixRequest
) -> None:
    """An insert with wrong checksums, partial pages or too many pages is refused."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.reserve(namespace_id, reservation_id=5, page_count=2)
    request = pb.InsertPrefixRequest(
        caller=worker.caller(), reservation_id=5, sequence=pb.Sequence()
    )
    request.MergeFrom(request_)
    with pytest.raises(Refused) as caught:
        worker.ask(worker.prefix_cache.InsertPrefix, request)
    assert caught.value.reason == reason
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    assert stats.counters.inserted_page_count == 0
    assert stats.namespaces[0].cached_page_count == 0


@pytest.mark.parametrize("count", [3, 100])
def test_a_batch_over_the_limit_is_refused(start_server: Callable[..., Server], count: int) -> None:
    """A batch over the limit is refused as a whole."""
    worker = start_server(limits=Limits(max_batch_size=2)).worker()
    namespace_id = worker.open_namespace()
    ids = list(range(1, count + 1))
    service = worker.prefix_cache
    asked = [pb.ReservationRequest(reservation_id=each, page_count=1) for each in ids]
    for method, request in (
        (service.ReleasePins, pb.ReleasePinsRequest(pin_ids=ids)),
        (service.AbortReservation, pb.AbortReservationRequest(reservation_ids=ids)),
        (
            service.ReservePages,
            pb.ReservePagesRequest(namespace_id=namespace_id, reservations=asked),
        ),
    ):
        request.caller.CopyFrom(worker.caller())
        with pytest.raises(Refused) as caught:
            worker.ask(method, request)
        assert caught.value.reason == "LIMIT_EXCEEDED"
        assert caught.value.metadata["limit"] == "max_batch_size"


def test_a_source_page_and_a_next_token_are_answered(server: Server) -> None:
    """A match answers its source page with pin and valid tokens, and the sequence's next token."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, PAGES, 1)
    worker.ask(
        worker.prefix_cache.InsertPrefix,
        pb.InsertPrefixRequest(
            caller=worker.caller(),
            reservation_id=1,
            sequence=pb.Sequence(tokens=PAGES[:24]),
            next_token=0,
        ),
    )
    request = match_request(
        worker,
        namespace_id,
        sequence=pb.Sequence(tokens=PAGES[:24]),
        source_pin_id=2,
        accept_next_token=True,
    )
    match = worker.ask(worker.prefix_cache.MatchPrefix, request).match
    assert (match.matched_token_count, match.next_token) == (4, 0)
    assert match.HasField("next_token")
    assert (match.source.source_pin_id, match.source.valid_token_count) == (2, 2)
    assert len(match.source.page.slot_indexes) == len(match.source.page.generations) == 1
    peeked = worker.ask(
        worker.prefix_cache.PeekPrefix,
        pb.PeekPrefixRequest(namespace_id=namespace_id, tokens=PAGES[:24]),
    )
    assert (peeked.matched_token_count, peeked.source_token_count) == (4, 1)


def test_without_a_pin_for_it_there_is_no_source_page(server: Server) -> None:
    """A match without a source pin id is answered in whole pages, without a next token."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, PAGES, 1)
    request = match_request(worker, namespace_id, sequence=pb.Sequence(tokens=PAGES[:24]))
    match = worker.ask(worker.prefix_cache.MatchPrefix, request).match
    assert match.matched_token_count == 4
    assert not match.HasField("source")
    assert not match.HasField("next_token")
