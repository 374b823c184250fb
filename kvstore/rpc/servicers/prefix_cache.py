"""PrefixCacheService: each method reads the request, makes one call, and answers."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from kvstore.core import Caller, Identity
from kvstore.rpc.pipeline import Call, method_of, unknown_method
from kvstore.rpc.wire import convert, fields
from kvstore.service.store import KVStore
from kvstore.v1 import prefix_cache_pb2 as pb

# The feature of a server whose answers report prefills in flight, to which acquires may yield.
IN_FLIGHT = "in_flight"
# The feature of a server that keeps pages of KV cache groups, and moves slots with an insert.
KV_CACHE_GROUPS = "kv_cache_groups"
# The feature of a server that runs the operations of many sequences in one call.
STEP = "step"
# The feature of a server with a tier 3, from which it loads pages ahead of a match.
PREFETCH = "prefetch"


class PrefixCacheServicer:
    """The request path. Raises KVStoreError, which the pipeline turns into statuses.

    Everything in a request but the number of its tokens is checked before the store is called.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        # The operations of a step, by their names in it.
        serves: dict[str, Callable[[Any, Call], Message]] = {
            "acquire": self.AcquirePrefix,
            "match": self.MatchPrefix,
            "reserve": self.ReservePages,
            "insert": self.InsertPrefix,
            "release": self.ReleasePins,
            "abort": self.AbortReservation,
            "prefetch": self.PrefetchPrefix,
        }
        self._operations = {
            name: method_of(f"/kvstore.v1.PrefixCacheService/{serve.__name__}", serve, store.limits)
            for name, serve in serves.items()
        }

    def MatchPrefix(self, request: pb.MatchPrefixRequest, call: Call) -> pb.MatchPrefixResponse:
        """Pins the longest cached prefix and answers it."""
        match = self._store.match(
            call.caller(request.caller.lease_id, request.caller.store_epoch),
            request.namespace_id,
            convert.sequence_of(request.sequence, call.tokens),
            convert.group_options_of(request, self._store.limits),
            call.remaining,
        )
        response = pb.MatchPrefixResponse()
        convert.fill_match(response.match, match, request.caller)
        return response

    def PrefetchPrefix(
        self, request: pb.PrefetchPrefixRequest, call: Call
    ) -> pb.PrefetchPrefixResponse:
        """Begins to load what tier 3 has of a sequence."""
        sequence = convert.sequence_of(request.sequence, call.tokens)
        who: Caller | Identity = call.who
        if request.HasField("caller"):
            who = call.caller(request.caller.lease_id, request.caller.store_epoch)
        else:
            convert.require_no_base(sequence)
        found = self._store.prefetch(
            who, request.namespace_id, sequence, may_evict=request.may_evict
        )
        return pb.PrefetchPrefixResponse(
            memory_token_count=found.memory_token_count,
            loading_token_count=found.loading_token_count,
            declined_token_count=found.declined_token_count,
            remote_token_count=found.remote_token_count,
        )

    def PeekPrefix(self, request: pb.PeekPrefixRequest, call: Call) -> pb.PeekPrefixResponse:
        """Answers what would match."""
        peeked = self._store.peek(
            call.who,
            request.namespace_id,
            request.tokens,
            convert.windows_of(request, self._store.limits),
            request.group_start_page,
        )
        return convert.peek_message(peeked)

    def ReservePages(self, request: pb.ReservePagesRequest, call: Call) -> pb.ReservePagesResponse:
        """Reserves slots for one or many sequences."""
        grants = self._store.reserve(
            call.caller(request.caller.lease_id, request.caller.store_epoch),
            request.namespace_id,
            convert.reservations_of(request, self._store.limits),
        )
        response = pb.ReservePagesResponse()
        for grant in grants:
            convert.fill_grant(response.grants.add(), grant, request.caller)
        return response

    def AcquirePrefix(
        self, request: pb.AcquirePrefixRequest, call: Call
    ) -> pb.AcquirePrefixResponse:
        """Matches, and reserves slots for the rest."""
        match, grant = self._store.acquire(
            call.caller(request.caller.lease_id, request.caller.store_epoch),
            request.namespace_id,
            convert.sequence_of(request.sequence, call.tokens),
            convert.options_of(request),
            reservation_id=request.reservation_id or fields.missing_id("reservation_id"),
            total_page_count=request.total_page_count,
            remaining=call.remaining,
            yield_idle=convert.yield_idle_of(request),
        )
        response = pb.AcquirePrefixResponse()
        convert.fill_match(response.match, match, request.caller)
        if grant is not None:
            convert.fill_grant(response.grant, grant, request.caller)
        return response

    def InsertPrefix(self, request: pb.InsertPrefixRequest, call: Call) -> pb.InsertPrefixResponse:
        """Publishes reserved pages."""
        next_token = convert.next_token_of(request)
        inserted = self._store.insert(
            call.caller(request.caller.lease_id, request.caller.store_epoch),
            request.reservation_id or fields.missing_id("reservation_id"),
            convert.sequence_of(request.sequence),
            next_token=next_token,
            checksums=request.page_checksums,
            hint=convert.hint_of(request),
            moves=convert.moves_of(request, self._store.limits),
        )
        response = pb.InsertPrefixResponse(published_page_count=inserted.published_page_count)
        for group, positions in inserted.groups:
            response.groups.add(group=group, published_positions=positions)
        for run in inserted.runs:
            convert.fill_run(response.runs.add(), run, request.caller)
        return response

    def ReleasePins(self, request: pb.ReleasePinsRequest, call: Call) -> pb.ReleasePinsResponse:
        """Releases pins."""
        fields.require_batch(request.pin_ids, self._store.limits)
        caller = call.caller(request.caller.lease_id, request.caller.store_epoch)
        self._store.release(caller, list(request.pin_ids))
        return pb.ReleasePinsResponse()

    def AbortReservation(
        self, request: pb.AbortReservationRequest, call: Call
    ) -> pb.AbortReservationResponse:
        """Ends reservations."""
        fields.require_batch(request.reservation_ids, self._store.limits)
        caller = call.caller(request.caller.lease_id, request.caller.store_epoch)
        self._store.abort(caller, list(request.reservation_ids))
        return pb.AbortReservationResponse()

    def RunStep(self, request: pb.RunStepRequest, call: Call) -> pb.RunStepResponse:
        """Makes the operations of a step in their order, each as its own method does.

        The mutex is free between any two of them.
        """
        assert call.operations is not None  # the pipeline gives them to each step
        fields.require_batch(request.operations, self._store.limits)
        response = pb.RunStepResponse()
        for operation in request.operations:
            result = response.results.add()
            kind = operation.WhichOneof("operation")
            if kind is None:
                method, inner = unknown_method("operation", "", self._store.limits), operation
            else:
                method, inner = self._operations[kind], getattr(operation, kind)
            answer, failure = call.operations.answer(method, inner)
            if answer is None:
                result.error.CopyFrom(failure)
            else:
                getattr(result, kind).CopyFrom(answer)
        return response
