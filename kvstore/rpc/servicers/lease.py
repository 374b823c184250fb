"""LeaseService: each method reads the request, makes one call, and answers."""

import grpc

from kvstore.rpc.identity import Callers
from kvstore.rpc.wire import fields
from kvstore.rpc.wire.fields import PageTokens, fresh_key, page_size_of
from kvstore.rpc.wire.report import duration, hold_message, lease_message
from kvstore.service.store import KVStore
from kvstore.v1 import lease_pb2 as pb
from kvstore.v1 import lease_pb2_grpc


class LeaseServicer(lease_pb2_grpc.LeaseServiceServicer):
    """Membership over gRPC. Raises KVStoreError, which the interceptors turn into statuses."""

    def __init__(self, store: KVStore, callers: Callers) -> None:
        self._store = store
        self._callers = callers
        self._page_key = fresh_key()

    def GrantLease(
        self, request: pb.GrantLeaseRequest, context: grpc.ServicerContext
    ) -> pb.GrantLeaseResponse:
        """Grants a lease."""
        caller = self._callers.member(context, request.lease_id, None)
        limits = self._store.limits
        ttl = self._store.grant(
            caller,
            ttl=fields.seconds("ttl", request.ttl) if request.HasField("ttl") else None,
            display_name=fields.name("display_name", request.display_name, limits),
            features=fields.names("features", request.features, limits),
        )
        return pb.GrantLeaseResponse(ttl=duration(ttl), store_epoch=self._store.epoch)

    def RenewLease(
        self, request: pb.RenewLeaseRequest, context: grpc.ServicerContext
    ) -> pb.RenewLeaseResponse:
        """Extends a lease by its TTL."""
        caller = self._callers.member(context, request.lease_id, request.store_epoch)
        return pb.RenewLeaseResponse(ttl=duration(self._store.renew(caller)))

    def RevokeLease(
        self, request: pb.RevokeLeaseRequest, context: grpc.ServicerContext
    ) -> pb.RevokeLeaseResponse:
        """Ends a lease, or, for an admin without its secret, expire it."""
        epoch = request.store_epoch or None
        self._store.revoke(self._callers.revoker(context, request.lease_id, epoch))
        return pb.RevokeLeaseResponse()

    def ListLeases(
        self, request: pb.ListLeasesRequest, context: grpc.ServicerContext
    ) -> pb.ListLeasesResponse:
        """List leases by time of granting."""
        identity = self._callers.identity(context)
        tokens = PageTokens(self._page_key, b"leases", identity)
        rows, last = self._store.listing.leases(
            identity,
            after=tokens.number(request.page_token),
            count=page_size_of(request.page_size),
        )
        return pb.ListLeasesResponse(
            leases=[lease_message(each) for each in rows], next_page_token=tokens.after(last)
        )

    def ListHolds(
        self, request: pb.ListHoldsRequest, context: grpc.ServicerContext
    ) -> pb.ListHoldsResponse:
        """Lists what one lease holds, by time of taking."""
        identity = self._callers.identity(context)
        lease_id = fields.random_id("lease_id", request.lease_id)
        tenant = fields.name("tenant", request.tenant, self._store.limits)
        holds = self._store.holds(identity, lease_id, tenant)
        page = PageTokens(self._page_key, b"holds of " + lease_id, identity).page(
            holds,
            lambda hold: hold.number,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListHoldsResponse(
            holds=[hold_message(each) for each in page.entries],
            next_page_token=page.next_page_token,
        )
