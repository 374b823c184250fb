"""PrefixCacheService: each method reads the request, makes one call, and answers."""

import grpc

from kvstore.rpc.identity import Callers
from kvstore.rpc.wire import convert, fields
from kvstore.service.store import KVStore
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import prefix_cache_pb2_grpc

# Answers tell of what other reservations are about to compute, and acquires yield to it.
IN_FLIGHT = "in_flight"


class PrefixCacheServicer(prefix_cache_pb2_grpc.PrefixCacheServiceServicer):
    """The request path over gRPC. Raises KVStoreError, which the interceptors turn into statuses.

    Everything in a request is checked before the store is called.
    """

    def __init__(self, store: KVStore, callers: Callers) -> None:
        self._store = store
        self._callers = callers

    def MatchPrefix(
        self, request: pb.MatchPrefixRequest, context: grpc.ServicerContext
    ) -> pb.MatchPrefixResponse:
        """Pins the longest cached prefix and answers it."""
        fields.require_present(request, "caller", "sequence")
        match = self._store.match(
            self._callers.worker(context, request.caller),
            fields.random_id("namespace_id", request.namespace_id),
            convert.sequence_of(
                request.sequence, self._store.limits, self._callers.tokens(context)
            ),
            convert.options_of(request),
            convert.terms_of(request, context),
        )
        response = pb.MatchPrefixResponse()
        convert.fill_match(response.match, match, request.caller)
        return response

    def PeekPrefix(
        self, request: pb.PeekPrefixRequest, context: grpc.ServicerContext
    ) -> pb.PeekPrefixResponse:
        """Answers what would match."""
        peeked = self._store.peek(
            self._callers.identity(context),
            fields.random_id("namespace_id", request.namespace_id),
            fields.tokens(request.tokens, 0, self._store.limits),
        )
        return convert.peek_message(peeked)

    def ReservePages(
        self, request: pb.ReservePagesRequest, context: grpc.ServicerContext
    ) -> pb.ReservePagesResponse:
        """Reserves slots for one or many sequences."""
        fields.require_present(request, "caller")
        grants = self._store.reserve(
            self._callers.worker(context, request.caller),
            fields.random_id("namespace_id", request.namespace_id),
            convert.reservations_of(request, self._store.limits),
        )
        response = pb.ReservePagesResponse()
        for grant in grants:
            convert.fill_grant(response.grants.add(), grant, request.caller)
        return response

    def AcquirePrefix(
        self, request: pb.AcquirePrefixRequest, context: grpc.ServicerContext
    ) -> pb.AcquirePrefixResponse:
        """Matches, and reserves slots for the rest."""
        fields.require_present(request, "caller", "sequence")
        match, grant = self._store.acquire(
            self._callers.worker(context, request.caller),
            fields.random_id("namespace_id", request.namespace_id),
            convert.sequence_of(
                request.sequence, self._store.limits, self._callers.tokens(context)
            ),
            convert.options_of(request),
            reservation_id=request.reservation_id or fields.missing_id("reservation_id"),
            total_page_count=request.total_page_count,
            terms=convert.terms_of(request, context),
            yield_idle=convert.yield_idle_of(request),
        )
        response = pb.AcquirePrefixResponse()
        convert.fill_match(response.match, match, request.caller)
        if grant is not None:
            convert.fill_grant(response.grant, grant, request.caller)
        return response

    def InsertPrefix(
        self, request: pb.InsertPrefixRequest, context: grpc.ServicerContext
    ) -> pb.InsertPrefixResponse:
        """Publishes reserved pages."""
        fields.require_present(request, "caller", "sequence")
        next_token = convert.next_token_of(request)
        inserted = self._store.insert(
            self._callers.worker(context, request.caller),
            request.reservation_id or fields.missing_id("reservation_id"),
            convert.sequence_of(request.sequence, self._store.limits),
            next_token=next_token,
            checksums=request.page_checksums,
            hint=convert.hint_of(request),
        )
        response = pb.InsertPrefixResponse(published_page_count=inserted.published_page_count)
        for run in inserted.runs:
            convert.fill_run(response.runs.add(), run, request.caller)
        return response

    def ReleasePins(
        self, request: pb.ReleasePinsRequest, context: grpc.ServicerContext
    ) -> pb.ReleasePinsResponse:
        """Releases pins."""
        fields.require_present(request, "caller")
        fields.require_batch(request.pin_ids, self._store.limits)
        caller = self._callers.worker(context, request.caller)
        self._store.release(caller, list(request.pin_ids))
        return pb.ReleasePinsResponse()

    def AbortReservation(
        self, request: pb.AbortReservationRequest, context: grpc.ServicerContext
    ) -> pb.AbortReservationResponse:
        """Ends reservations."""
        fields.require_present(request, "caller")
        fields.require_batch(request.reservation_ids, self._store.limits)
        caller = self._callers.worker(context, request.caller)
        self._store.abort(caller, list(request.reservation_ids))
        return pb.AbortReservationResponse()
