"""The callers of every method of the server and every frame of a client, one entry each.

The one table. tests/unit/rpc/test_permissions.py calls a server as it says, and fails for a
method that is not in it; docs/permissions.py writes it out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2, types_pb2

EPOCH = 81985529216486895
PAGE_TOKENS = 4
# Two pages: the first is cached, the second is what a reservation of one page is for. Ids that
# are found wherever they are written.
FIRST_TOKEN = 1_514_228_101
TOKENS = b"".join(
    each.to_bytes(4, "little") for each in range(FIRST_TOKEN, FIRST_TOKEN + 2 * PAGE_TOKENS)
)
SALT = b"a salt that is recognised"
CACHED = TOKENS[: PAGE_TOKENS * 4]
NAMED_PIN = "system"
OK = "OK"
UNIMPLEMENTED = "UNIMPLEMENTED"
NOBODY = "CREDENTIAL_REQUIRED"
NO_LEASE = "LEASE_NOT_FOUND"
NO_NAMESPACE = "NAMESPACE_NOT_FOUND"


@dataclass(frozen=True)
class Names:
    """The names in a request."""

    lease_id: bytes
    namespace_id: bytes
    pin_id: int
    reservation_id: int
    epoch: int = EPOCH

    @property
    def caller(self) -> prefix_cache_pb2.Caller:
        """The lease, as a message of the request path."""
        return prefix_cache_pb2.Caller(lease_id=self.lease_id, store_epoch=self.epoch)


Build: TypeAlias = Callable[[Names], Message]


@dataclass(frozen=True)
class Permission:
    """The reason with which a call ends, for each kind of caller.

    ``other``: all that it names, the lease with its secret included, is another tenant's.
    ``under_own_lease``: the lease is the caller's, what else is named another tenant's;
    empty where nothing else is named. Both have to end as if it was not there.
    """

    build: Build
    own: str
    other: str
    under_own_lease: str
    nobody: str
    admin: str
    means: str


def anybody(build: Build, means: str) -> Permission:
    """Returns the permission of a method that everybody who reaches the address may call."""
    return Permission(build, OK, OK, "", OK, OK, means)


def any_tenant(build: Build, means: str) -> Permission:
    """Each tenant is answered of its own, an admin of all."""
    return Permission(build, OK, OK, "", NOBODY, OK, means)


def of_namespace(build: Build, means: str) -> Permission:
    """The namespace's tenant may, and an admin."""
    return Permission(build, OK, NO_NAMESPACE, "", NOBODY, OK, means)


def of_lease(build: Build, means: str, under_own_lease: str = "") -> Permission:
    """Returns the permission of a method for holders of the lease's secret, of its tenant only."""
    return Permission(build, OK, NO_LEASE, under_own_lease, NOBODY, NO_LEASE, means)


lease, cache, named, store = lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2
LEASES, CACHE = "kvstore.v1.LeaseService", "kvstore.v1.PrefixCacheService"
PINS, STORE = "kvstore.v1.NamedPinService", "kvstore.v1.StoreService"
WHOLE = cache.Sequence(tokens=TOKENS)

PERMISSIONS: Mapping[str, Permission] = {
    f"{LEASES}/GrantLease": any_tenant(
        lambda n: lease.GrantLeaseRequest(lease_id=n.lease_id),
        "The lease is the caller's tenant's, whatever ids other tenants chose.",
    ),
    f"{LEASES}/RenewLease": of_lease(
        lambda n: lease.RenewLeaseRequest(lease_id=n.lease_id, store_epoch=n.epoch),
        "Needs the lease's secret.",
    ),
    f"{LEASES}/RevokeLease": any_tenant(
        lambda n: lease.RevokeLeaseRequest(lease_id=n.lease_id, store_epoch=n.epoch),
        "Ends a lease of the caller's tenant, with its secret; an id that is none succeeds."
        " From an admin it is an expiry, of any tenant's lease.",
    ),
    f"{LEASES}/ListLeases": any_tenant(
        lambda _: lease.ListLeasesRequest(), "Lists the tenant's leases; to an admin, all."
    ),
    f"{LEASES}/ListHolds": Permission(
        lambda n: lease.ListHoldsRequest(lease_id=n.lease_id),
        OK,
        NO_LEASE,
        "",
        NOBODY,
        OK,
        "Of a lease of the tenant's, without its secret; to an admin, of any tenant's.",
    ),
    f"{CACHE}/MatchPrefix": of_lease(
        lambda n: cache.MatchPrefixRequest(
            caller=n.caller, namespace_id=n.namespace_id, sequence=WHOLE, pin_id=101
        ),
        "Needs the lease's secret and an attached process.",
        NO_NAMESPACE,
    ),
    f"{CACHE}/PrefetchPrefix": of_lease(
        lambda n: cache.PrefetchPrefixRequest(
            caller=n.caller, namespace_id=n.namespace_id, sequence=WHOLE
        ),
        "As MatchPrefix. Without a lease as PeekPrefix: remote clients may.",
        NO_NAMESPACE,
    ),
    f"{CACHE}/PeekPrefix": of_namespace(
        lambda n: cache.PeekPrefixRequest(namespace_id=n.namespace_id, tokens=TOKENS),
        "No lease needed: remote clients may.",
    ),
    f"{CACHE}/ReservePages": of_lease(
        lambda n: cache.ReservePagesRequest(
            caller=n.caller,
            namespace_id=n.namespace_id,
            reservations=[cache.ReservationRequest(reservation_id=102, page_count=1)],
        ),
        "As MatchPrefix.",
        NO_NAMESPACE,
    ),
    f"{CACHE}/AcquirePrefix": of_lease(
        lambda n: cache.AcquirePrefixRequest(
            caller=n.caller,
            namespace_id=n.namespace_id,
            sequence=WHOLE,
            pin_id=101,
            reservation_id=102,
            total_page_count=2,
        ),
        "As MatchPrefix.",
        NO_NAMESPACE,
    ),
    f"{CACHE}/InsertPrefix": of_lease(
        lambda n: cache.InsertPrefixRequest(
            caller=n.caller,
            reservation_id=n.reservation_id,
            sequence=cache.Sequence(
                tokens=TOKENS[len(CACHED) :], position=PAGE_TOKENS, base_pin_id=n.pin_id
            ),
        ),
        "As MatchPrefix, under a reservation of the lease's.",
        "RESERVATION_NOT_FOUND",
    ),
    f"{CACHE}/ReleasePins": of_lease(
        lambda n: cache.ReleasePinsRequest(caller=n.caller, pin_ids=[n.pin_id]),
        "Needs the lease's secret; an id that is none of the lease's succeeds.",
        OK,
    ),
    f"{CACHE}/AbortReservation": of_lease(
        lambda n: cache.AbortReservationRequest(
            caller=n.caller, reservation_ids=[n.reservation_id]
        ),
        "As ReleasePins.",
        OK,
    ),
    f"{CACHE}/RunStep": of_lease(
        lambda n: cache.RunStepRequest(
            caller=n.caller,
            namespace_id=n.namespace_id,
            operations=[
                cache.StepOperation(match=cache.MatchPrefixRequest(sequence=WHOLE, pin_id=101))
            ],
        ),
        "Each operation as its own method. A refusal is in the operation's result.",
        NO_NAMESPACE,
    ),
    f"{PINS}/PinPrefix": of_namespace(
        lambda n: named.PinPrefixRequest(
            namespace_id=n.namespace_id, name="another", tokens=CACHED
        ),
        "In the tenant's own namespaces; counts against the quota of the namespace's tenant.",
    ),
    f"{PINS}/UnpinPrefix": of_namespace(
        lambda n: named.UnpinPrefixRequest(namespace_id=n.namespace_id, name=NAMED_PIN),
        "In the tenant's own namespaces.",
    ),
    f"{PINS}/ListPins": of_namespace(
        lambda n: named.ListPinsRequest(namespace_id=n.namespace_id),
        "Of a namespace; without one of all of the tenant's, to an admin of all there are.",
    ),
    f"{STORE}/GetCapabilities": any_tenant(
        lambda _: store.GetCapabilitiesRequest(), "Of extents, the tenant's alone."
    ),
    f"{STORE}/GetStats": any_tenant(
        lambda _: store.GetStatsRequest(), "The tenant's alone; to an admin, of all."
    ),
    f"{STORE}/OpenNamespace": of_lease(
        lambda n: store.OpenNamespaceRequest(
            lease_id=n.lease_id,
            store_epoch=n.epoch,
            identity=types_pb2.NamespaceIdentity(model_digest=b"a model", salt=SALT),
            layout=types_pb2.PageLayout(
                page_tokens=PAGE_TOKENS,
                page_bytes=64,
                opaque=types_pb2.OpaqueLayout(fingerprint=b"a layout", divides_by_token=True),
            ),
        ),
        "As MatchPrefix. The same model and salt of two tenants are two namespaces.",
    ),
    f"{STORE}/ListNamespaces": any_tenant(
        lambda _: store.ListNamespacesRequest(), "Lists the tenant's; to an admin, all."
    ),
    f"{STORE}/DeleteNamespace": any_tenant(
        lambda n: store.DeleteNamespaceRequest(namespace_id=n.namespace_id),
        "Of the tenant's own namespaces, an admin of any; an id that is none succeeds.",
    ),
    f"{STORE}/ListPrefixes": of_namespace(
        lambda n: store.ListPrefixesRequest(namespace_id=n.namespace_id, max_tokens=8),
        "In the tenant's own namespaces.",
    ),
    f"{STORE}/EvictPrefix": of_namespace(
        lambda n: store.EvictPrefixRequest(namespace_id=n.namespace_id, tokens=CACHED),
        "In the tenant's own namespaces.",
    ),
    f"{STORE}/WatchEvents": of_namespace(
        lambda n: store.WatchEventsRequest(namespace_id=n.namespace_id),
        "Of a namespace; without one of all of the tenant's, to an admin of all there are."
        " Bounded in number.",
    ),
    "grpc.health.v1.Health/Check": anybody(
        lambda _: health_pb2.HealthCheckRequest(), "For probes; says nothing of any tenant."
    ),
    "grpc.health.v1.Health/Watch": Permission(
        lambda _: health_pb2.HealthCheckRequest(),
        *(UNIMPLEMENTED, UNIMPLEMENTED, "", UNIMPLEMENTED, UNIMPLEMENTED),
        "Not served: probes use Check.",
    ),
    "grpc.health.v1.Health/List": anybody(
        lambda _: health_pb2.HealthListRequest(), "As Check, of all services."
    ),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anybody(
        lambda _: reflection_pb2.ServerReflectionRequest(list_services=""),
        "The published contract; bounded in number.",
    ),
}


@dataclass(frozen=True)
class FramePermission:
    """The answer to a frame of the attach socket. A refusal is given by its reason."""

    own: str
    other: str
    nobody: str
    admin: str
    means: str


NOT_ADMITTED = "PEER_REFUSED"
FRAMES: Mapping[str, FramePermission] = {
    "hello": FramePermission(
        "welcome", "", NOT_ADMITTED, "welcome", "Names nothing: the kernel says who it is."
    ),
    "bind": FramePermission(
        "bound",
        NO_LEASE,
        NOT_ADMITTED,
        NO_LEASE,
        "Needs the lease's secret, of the tenant of the peer's uid.",
    ),
    "open_lane": FramePermission(
        "lane_opened",
        NO_LEASE,
        NOT_ADMITTED,
        NO_LEASE,
        "As Bind, for a process that is attached to the lease. Calls over it are as above.",
    ),
    "acknowledge": FramePermission(
        "acknowledged",
        "acknowledged, nothing",
        NOT_ADMITTED,
        "acknowledged, nothing",
        "Counts for what this process was given alone.",
    ),
    "unmapped": FramePermission(
        "no answer",
        "no answer",
        NOT_ADMITTED,
        "no answer",
        "Counts for this process alone.",
    ),
}
