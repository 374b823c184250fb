"""LeaseService: each method reads the request, makes one call, and answers."""

from kvstore.rpc.pipeline import Call
from kvstore.rpc.wire import fields
from kvstore.rpc.wire.fields import PageTokens, fresh_key, page_size_of
from kvstore.rpc.wire.report import duration, hold_message, lease_message
from kvstore.service.store import KVStore
from kvstore.v1 import lease_pb2 as pb


class LeaseServicer:
    """Membership. Raises KVStoreError, which the pipeline turns into statuses."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._page_key = fresh_key()

    def GrantLease(self, request: pb.GrantLeaseRequest, call: Call) -> pb.GrantLeaseResponse:
        """Grants a lease."""
        caller = call.caller(request.lease_id, None)
        limits = self._store.limits
        ttl = self._store.grant(
            caller,
            ttl=fields.seconds("ttl", request.ttl) if request.HasField("ttl") else None,
            display_name=fields.name("display_name", request.display_name, limits),
            features=fields.names("features", request.features, limits),
        )
        return pb.GrantLeaseResponse(ttl=duration(ttl), store_epoch=self._store.epoch)

    def RenewLease(self, request: pb.RenewLeaseRequest, call: Call) -> pb.RenewLeaseResponse:
        """Extends a lease by its TTL."""
        caller = call.caller(request.lease_id, request.store_epoch)
        return pb.RenewLeaseResponse(ttl=duration(self._store.renew(caller)))

    def RevokeLease(self, request: pb.RevokeLeaseRequest, call: Call) -> pb.RevokeLeaseResponse:
        """Ends a lease, or expires it for an admin without its secret."""
        epoch = request.store_epoch or None
        self._store.revoke(call.revoker(request.lease_id, epoch))
        return pb.RevokeLeaseResponse()

    def ListLeases(self, request: pb.ListLeasesRequest, call: Call) -> pb.ListLeasesResponse:
        """Lists leases by time of granting."""
        tokens = PageTokens(self._page_key, b"leases", call.who)
        rows, last = self._store.listing.leases(
            call.who,
            after=tokens.number(request.page_token),
            count=page_size_of(request.page_size),
        )
        return pb.ListLeasesResponse(
            leases=[lease_message(each) for each in rows], next_page_token=tokens.after(last)
        )

    def ListHolds(self, request: pb.ListHoldsRequest, call: Call) -> pb.ListHoldsResponse:
        """Lists what one lease holds, by time of taking."""
        tenant = fields.name("tenant", request.tenant, self._store.limits)
        holds = self._store.holds(call.who, request.lease_id, tenant)
        page = PageTokens(self._page_key, b"holds of " + request.lease_id, call.who).page(
            holds,
            lambda hold: hold.number,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListHoldsResponse(
            holds=[hold_message(each) for each in page.entries],
            next_page_token=page.next_page_token,
        )
