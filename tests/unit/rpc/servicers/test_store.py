"""StoreService over a real server."""

from collections.abc import Callable

import pytest

from kvstore.core.values.limits import Limits
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import types_pb2
from stores.rpc_world import (
    ADMIN_UID,
    EPOCH,
    PAGE_BYTES,
    PAGE_TOKENS,
    VERSION,
    Refused,
    Server,
    Worker,
    tokens,
)

FIRST = tokens(*range(8))
SECOND = tokens(*range(100, 108))


def test_capabilities_are_limits_epoch_and_extents(server: Server) -> None:
    """Capabilities have the store's limits and epoch, and the tenant's extents without handles."""
    worker, stranger = server.worker(), server.worker(uid=3)
    worker.open_namespace()
    answer = worker.ask(worker.store.GetCapabilities, pb.GetCapabilitiesRequest())
    assert (answer.store_epoch, answer.server_version) == (EPOCH, VERSION)
    assert answer.attach_path == str(server.path.parent / "attach.sock")
    assert answer.prefix_cache_backend == "radix"
    limits = Limits()
    assert answer.limits.max_tokens == limits.max_tokens
    assert answer.limits.max_deadline.seconds == limits.max_deadline
    assert answer.limits.min_ttl.nanos == 200_000_000
    (extent,) = answer.extents
    assert extent == types_pb2.Extent(
        extent_id=1,
        arena_id=1,
        tier=types_pb2.TIER_1,
        slot_count=4,
        slot_bytes=PAGE_BYTES,
        host=types_pb2.HostHandle(size_bytes=4 * PAGE_BYTES),
        generation_table=types_pb2.GenerationTable(size_bytes=4 * 8),
        arena_offset=0,
    )
    assert not stranger.ask(stranger.store.GetCapabilities, pb.GetCapabilitiesRequest()).extents


def test_a_namespace_is_opened_once_and_answers_its_arena(server: Server) -> None:
    """Opening the same identity twice gives the same namespace, whose arena has an extent."""
    worker = server.worker()
    answers = [worker.ask(worker.store.OpenNamespace, worker.open_request()) for _ in range(2)]
    assert answers[0] == answers[1]
    assert (len(answers[0].namespace_id), list(answers[0].extent_ids)) == (16, [1])


@pytest.mark.parametrize(
    ("reason", "field", "change"),
    [
        ("INVALID_FIELD", "identity", lambda r: r.ClearField("identity")),
        ("INVALID_FIELD", "layout", lambda r: r.ClearField("layout")),
        ("INVALID_FIELD", "layout.content", lambda r: r.layout.ClearField("opaque")),
        ("INVALID_FIELD", "identity.model_digest", lambda r: r.identity.ClearField("model_digest")),
        ("INVALID_FIELD", "lease_id", lambda r: r.ClearField("lease_id")),
        ("STALE_EPOCH", None, lambda r: r.ClearField("store_epoch")),
        ("LAYOUT_MISMATCH", "page_tokens", lambda r: setattr(r.layout, "page_tokens", 5)),
    ],
)
def test_a_namespace_that_cannot_be_opened_is_refused(
    server: Server, reason: str, field: str | None, change: Callable[..., None]
) -> None:
    """A bad request is refused by its field, and a different layout by its first difference."""
    worker = server.worker()
    worker.open_namespace()
    request = worker.open_request()
    change(request)
    with pytest.raises(Refused) as caught:
        worker.ask(worker.store.OpenNamespace, request)
    assert (caught.value.reason, caught.value.metadata.get("field")) == (reason, field)
    listed = worker.ask(worker.store.ListNamespaces, pb.ListNamespacesRequest())
    assert len(listed.namespaces) == 1


def test_without_memory_a_namespace_is_refused_for_now(
    start_server: Callable[..., Server],
) -> None:
    """Opening a namespace fails with POOL_EXHAUSTED and a retry delay if no memory is free."""
    worker = start_server(slots=0).worker()
    with pytest.raises(Refused) as caught:
        worker.ask(worker.store.OpenNamespace, worker.open_request())
    assert caught.value.reason == "POOL_EXHAUSTED"
    assert "google.rpc.RetryInfo" in caught.value.detail_types


def test_statistics_are_one_snapshot(server: Server) -> None:
    """The slots of all states sum to the arena's slots, and counters count the calls made."""
    worker = server.worker()
    worker.publish(worker.open_namespace(), FIRST, 1)
    stats = worker.ask(worker.store.GetStats, pb.GetStatsRequest())
    assert stats.store_epoch == EPOCH
    (arena,) = stats.arenas
    assert (arena.slot_count, arena.cached_slot_count, arena.reserved_slot_count) == (4, 2, 0)
    states = ("free", "reserved", "cached", "detached", "moving", "quarantined")
    assert sum(getattr(arena, f"{state}_slot_count") for state in states) == arena.slot_count
    assert stats.counters.inserted_page_count == 2
    assert (stats.pin_count, stats.reservation_count, len(stats.leases)) == (0, 1, 1)
    assert stats.uptime.ToNanoseconds() > 0


def test_namespaces_are_listed_in_pages_and_by_tenant(server: Server) -> None:
    """A tenant lists its own namespaces, page by page and without salt. An admin lists all."""
    worker, stranger = server.worker(), server.worker(uid=3)
    first = worker.open_namespace()
    request = worker.open_request()
    request.identity.salt = b"another"
    second = worker.ask(worker.store.OpenNamespace, request).namespace_id
    stranger.open_namespace()
    one = worker.ask(worker.store.ListNamespaces, pb.ListNamespacesRequest(page_size=1))
    two = worker.ask(
        worker.store.ListNamespaces, pb.ListNamespacesRequest(page_token=one.next_page_token)
    )
    listed = [*one.namespaces, *two.namespaces]
    assert [each.namespace_id for each in listed] == [first, second]
    assert (len(one.namespaces), two.next_page_token) == (1, "")
    assert {each.tenant for each in listed} == {"uid-2"}
    assert {each.identity.salt for each in listed} == {b""}
    request.layout.tensor_parallel_size = 1
    assert {each.layout.SerializeToString() for each in listed} == {
        request.layout.SerializeToString()
    }
    admin = server.worker(uid=ADMIN_UID)
    everything = admin.ask(admin.store.ListNamespaces, pb.ListNamespacesRequest())
    assert {each.tenant for each in everything.namespaces} == {"uid-2", "uid-3"}


def test_only_admins_are_told_what_tiers_may_take(server: Server) -> None:
    """Only an admin's statistics have the tiers' budgets, which describe the machine."""
    shown = []
    for uid in (2, ADMIN_UID):
        worker = server.worker(uid=uid)
        stats = worker.ask(worker.store.GetStats, pb.GetStatsRequest())
        shown.append({each.tier: each.size_bytes for each in stats.tier_budgets})
    assert shown == [{}, server.store.tier_bytes]
    assert shown[1]


def prefixes(worker: Worker, namespace_id: bytes, page_size: int) -> list[pb.PrefixInfo]:
    """Returns all nodes of a namespace, page by page."""
    found: list[pb.PrefixInfo] = []
    request = pb.ListPrefixesRequest(
        namespace_id=namespace_id, page_size=page_size, max_tokens=PAGE_TOKENS
    )
    while True:
        answer = worker.ask(worker.store.ListPrefixes, request)
        found += answer.prefixes
        request.page_token = answer.next_page_token
        if not request.page_token:
            return found


@pytest.mark.parametrize("page_size", [1, 2, 3, 0])
def test_prefixes_are_listed_in_pages(server: Server, page_size: int) -> None:
    """Every node is listed once, with its place, its size and its first tokens."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    worker.publish(namespace_id, SECOND, 2)
    listed = prefixes(worker, namespace_id, page_size)
    assert [(each.start_page, each.page_count) for each in listed] == [(0, 2), (0, 2)]
    assert [each.tokens for each in listed] == [FIRST[:16], SECOND[:16]]
    assert len({each.node_id for each in listed}) == 2


def test_a_page_of_prefixes_is_checked(server: Server) -> None:
    """A list request with another list's token or with too many tokens is refused."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    for field, request in (
        ("page_token", pb.ListPrefixesRequest(namespace_id=namespace_id, page_token="x")),  # noqa: S106
        ("page_size", pb.ListPrefixesRequest(namespace_id=namespace_id, page_size=-1)),
        ("max_tokens", pb.ListPrefixesRequest(namespace_id=namespace_id, max_tokens=1 << 20)),
        ("namespace_id", pb.ListPrefixesRequest()),
    ):
        with pytest.raises(Refused) as caught:
            worker.ask(worker.store.ListPrefixes, request)
        assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_FIELD", field)


def test_evicting_says_what_went_and_what_is_held(server: Server) -> None:
    """An evicted prefix is counted, as detached if it is held. Evicting it again counts nothing."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    request = pb.EvictPrefixRequest(namespace_id=namespace_id, tokens=FIRST, store_epoch=EPOCH)
    answer = worker.ask(worker.store.EvictPrefix, request)
    assert answer == pb.EvictPrefixResponse(detached_page_count=1)
    assert worker.ask(worker.store.EvictPrefix, request) == pb.EvictPrefixResponse()


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("STALE_EPOCH", {"store_epoch": 1}),
        ("INVALID_FIELD", {"tokens": FIRST[:3]}),
        ("INVALID_FIELD", {"namespace_id": b"x"}),
        ("NAMESPACE_NOT_FOUND", {"namespace_id": bytes(16)}),
    ],
)
def test_a_bad_eviction_removes_nothing(
    server: Server, reason: str, changes: dict[str, int | bytes]
) -> None:
    """A bad eviction is refused for its epoch, tokens or namespace, and removes nothing."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    request = pb.EvictPrefixRequest(namespace_id=namespace_id, tokens=FIRST)
    request.MergeFrom(pb.EvictPrefixRequest(**changes))  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        worker.ask(worker.store.EvictPrefix, request)
    assert caught.value.reason == reason
    stats = worker.ask(worker.store.GetStats, pb.GetStatsRequest())
    assert stats.namespaces[0].cached_page_count == 2


def test_another_tenant_s_namespace_is_not_there(server: Server) -> None:
    """A stranger cannot list or evict in another tenant's namespace. An admin can."""
    worker, stranger = server.worker(), server.worker(uid=3)
    admin = server.worker(uid=ADMIN_UID)
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    calls = (
        (lambda w: w.store.ListPrefixes, pb.ListPrefixesRequest(namespace_id=namespace_id)),
        (lambda w: w.store.EvictPrefix, pb.EvictPrefixRequest(namespace_id=namespace_id)),
    )
    for method, request in calls:
        with pytest.raises(Refused) as caught:
            stranger.ask(method(stranger), request)
        assert caught.value.reason == "NAMESPACE_NOT_FOUND"
    for method, request in calls:
        admin.ask(method(admin), request)


def test_a_namespace_is_deleted_for_good(server: Server) -> None:
    """A deleted namespace stays unknown to all, and opening its identity again makes a new one."""
    worker, other = server.worker(), server.worker()
    namespace_id = worker.open_namespace()
    assert other.open_namespace() == namespace_id
    worker.publish(namespace_id, FIRST, 1)
    request = pb.DeleteNamespaceRequest(namespace_id=namespace_id)
    answer = other.ask(other.store.DeleteNamespace, request)
    # The writer's reservation holds them until it ends.
    assert (answer.evicted_page_count, answer.detached_page_count) == (0, 2)
    assert other.ask(other.store.DeleteNamespace, request) == pb.DeleteNamespaceResponse()
    for each in (worker, other):
        with pytest.raises(Refused) as caught:
            each.publish(namespace_id, SECOND, 2)
        assert caught.value.reason == "NAMESPACE_NOT_FOUND"
    fresh = worker.open_namespace()
    assert fresh == other.open_namespace() != namespace_id
    worker.publish(fresh, FIRST, 3)
    listed = worker.ask(worker.store.ListNamespaces, pb.ListNamespacesRequest()).namespaces
    assert [(each.namespace_id, each.cached_page_count) for each in listed] == [(fresh, 2)]


@pytest.mark.parametrize("namespace_id", [b"", b"short"])
def test_what_is_no_namespace_s_id_is_refused(server: Server, namespace_id: bytes) -> None:
    """A malformed namespace id is refused with the field's name."""
    worker = server.worker()
    request = pb.DeleteNamespaceRequest(namespace_id=namespace_id)
    with pytest.raises(Refused) as caught:
        worker.ask(worker.store.DeleteNamespace, request)
    assert caught.value.metadata["field"] == "namespace_id"
