"""The admin client against a scripted store."""

from collections.abc import Iterator

import pytest

from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2
from kvstore_client import Admin, connect_admin, errors
from kvstore_client.prefix_fetch import FetchedPrefix
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.packed_tokens import pack_tokens
from wire.scripted_session import WELCOME
from wire.scripted_store import ScriptedAttach, ScriptedCalls, refusal


@pytest.fixture
def admin(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Admin]:
    """Provides an admin client that is connected to scripted sockets."""
    assert scripted.requests == {}
    peer = ScriptedAttach(runtime_dir.attach_socket, [(WELCOME, ())])
    with connect_admin(runtime_dir.path, timeout=30) as admin:
        yield admin
    peer.close()


def test_the_credential_is_the_sockets(scripted: ScriptedCalls, admin: Admin) -> None:
    """The credential from the attach socket is sent with each call and can be read."""
    scripted.answer("GetStats", store_pb2.GetStatsResponse(pin_count=3))
    scripted.answer("GetCapabilities", store_pb2.GetCapabilitiesResponse(server_version="9"))
    assert admin.credential == "c"
    assert admin.stats().pin_count == 3
    assert admin.capabilities().server_version == "9"
    assert scripted.metadata["authorization"] == "Bearer c"
    assert "kvstore-lease-secret-bin" not in scripted.metadata


def test_lists_go_on_to_their_end(scripted: ScriptedCalls, admin: Admin) -> None:
    """A list is read page by page to its end."""
    leases = [lease_pb2.ListLeasesResponse(leases=[{"pin_count": n}]) for n in (1, 2)]
    spaces = [store_pb2.ListNamespacesResponse(namespaces=[{"arena_id": n}]) for n in (1, 2)]
    prefixes = [store_pb2.ListPrefixesResponse(prefixes=[{"node_id": n}]) for n in (1, 2)]
    pins = [named_pin_pb2.ListPinsResponse(pins=[{"name": name}]) for name in "pq"]
    holds = [lease_pb2.ListHoldsResponse(holds=[{"hold_id": n}]) for n in (1, 2)]
    for first, _ in (leases, spaces, prefixes, pins, holds):
        first.next_page_token = "more"  # noqa: S105  # a place in a list
    scripted.answer("ListLeases", *leases)
    scripted.answer("ListNamespaces", *spaces)
    scripted.answer("ListPrefixes", *prefixes)
    scripted.answer("ListPins", *pins)
    scripted.answer("ListHolds", *holds)
    assert [each.pin_count for each in admin.leases()] == [1, 2]
    assert [each.arena_id for each in admin.namespaces()] == [1, 2]
    assert [each.node_id for each in admin.prefixes(b"space", max_tokens=5)] == [1, 2]
    assert [each.name for each in admin.named_pins(b"space")] == ["p", "q"]
    lease = lease_pb2.LeaseInfo(lease_id=b"lease", tenant="uid-1")
    assert [each.hold_id for each in admin.holds(lease)] == [1, 2]
    last_holds = lease_pb2.ListHoldsRequest.FromString(scripted.requests["ListHolds"][1])
    assert (last_holds.lease_id, last_holds.tenant) == (b"lease", "uid-1")
    last_pins = named_pin_pb2.ListPinsRequest.FromString(scripted.requests["ListPins"][1])
    assert (last_pins.namespace_id, last_pins.page_token) == (b"space", "more")
    last = store_pb2.ListPrefixesRequest.FromString(scripted.requests["ListPrefixes"][1])
    assert (last.namespace_id, last.max_tokens, last.page_token) == (b"space", 5, "more")


def test_a_prefix_is_evicted_by_its_tokens(scripted: ScriptedCalls, admin: Admin) -> None:
    """An eviction sends packed tokens and returns the counts of removed pages."""
    scripted.answer("EvictPrefix", store_pb2.EvictPrefixResponse(evicted_page_count=4))
    assert admin.evict_prefix(b"space", [1]).evicted_page_count == 4
    request = store_pb2.EvictPrefixRequest.FromString(scripted.requests["EvictPrefix"][0])
    assert (request.namespace_id, request.tokens) == (b"space", b"\1\0\0\0")


def test_a_prefix_is_pinned_by_name(scripted: ScriptedCalls, admin: Admin) -> None:
    """A pin sends its name, packed tokens and options. It has a TTL only if one is given."""
    answer = named_pin_pb2.PinPrefixResponse(pinned_token_count=4)
    scripted.answer("PinPrefix", answer, answer, refusal("PREFIX_NOT_CACHED"))
    scripted.answer("UnpinPrefix", named_pin_pb2.UnpinPrefixResponse())
    assert admin.pin_prefix(b"space", "p", [1], ttl=1.5, require_all=True).pinned_token_count == 4
    assert admin.pin_prefix(b"space", "p", [1]).pinned_token_count == 4
    with pytest.raises(errors.PrefixNotCached):
        admin.pin_prefix(b"space", "p", [1])
    first, second, _ = map(
        named_pin_pb2.PinPrefixRequest.FromString, scripted.requests["PinPrefix"]
    )
    assert (first.namespace_id, first.name, first.tokens) == (b"space", "p", b"\1\0\0\0")
    assert (first.ttl.ToMilliseconds(), first.require_all) == (1500, True)
    assert (second.HasField("ttl"), second.require_all) == (False, False)
    admin.unpin_prefix(b"space", "p")
    unpin = named_pin_pb2.UnpinPrefixRequest.FromString(scripted.requests["UnpinPrefix"][0])
    assert (unpin.namespace_id, unpin.name) == (b"space", "p")


def test_a_fetch_repeats_a_prefetch(scripted: ScriptedCalls, admin: Admin) -> None:
    """With one more token, so that a match would use all pages."""
    scripted.answer(
        "PrefetchPrefix",
        prefix_cache_pb2.PrefetchPrefixResponse(loading_token_count=2, remote_token_count=1),
        prefix_cache_pb2.PrefetchPrefixResponse(memory_token_count=2),
    )
    found = admin.fetch_prefix(b"space", [1, 2], seconds=30, may_evict=True)
    assert found == FetchedPrefix(0, 1, 1, 0)
    for each in scripted.requests["PrefetchPrefix"]:
        asked = prefix_cache_pb2.PrefetchPrefixRequest.FromString(each)
        assert asked.sequence.tokens == pack_tokens([1, 2, 0])
        assert asked.may_evict


def test_refusals_are_raised(scripted: ScriptedCalls, admin: Admin) -> None:
    """A refusal is raised to the operator."""
    scripted.answer("ListPrefixes", refusal("NAMESPACE_NOT_FOUND"))
    with pytest.raises(errors.NamespaceNotFound):
        list(admin.prefixes(b"space"))


def test_without_a_store_there_is_no_administration(runtime_dir: RuntimeDir) -> None:
    """Connecting without a store raises StoreUnavailable."""
    with pytest.raises(errors.StoreUnavailable), connect_admin(runtime_dir.path):
        pass


def test_a_prefetch_needs_no_lease(scripted: ScriptedCalls, admin: Admin) -> None:
    """It names the namespace and the tokens only."""
    answer = prefix_cache_pb2.PrefetchPrefixResponse(loading_token_count=4)
    scripted.answer("PrefetchPrefix", answer)
    assert admin.prefetch_prefix(b"space", [1, 2]) == answer
    [asked] = map(
        prefix_cache_pb2.PrefetchPrefixRequest.FromString, scripted.requests["PrefetchPrefix"]
    )
    assert (asked.namespace_id, asked.HasField("caller")) == (b"space", False)
    assert asked.sequence.tokens == pack_tokens([1, 2])
