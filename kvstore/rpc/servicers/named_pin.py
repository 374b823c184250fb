"""NamedPinService: each method reads the request, makes one call, and answers."""

import grpc

from kvstore.core import NamedPinRequest
from kvstore.rpc.identity import Callers
from kvstore.rpc.wire import fields, report
from kvstore.rpc.wire.fields import PageTokens, fresh_key
from kvstore.service.store import KVStore
from kvstore.v1 import named_pin_pb2 as pb
from kvstore.v1 import named_pin_pb2_grpc


class NamedPinServicer(named_pin_pb2_grpc.NamedPinServiceServicer):
    """Named pins over gRPC. Raises KVStoreError, which the interceptors turn into statuses."""

    def __init__(self, store: KVStore, callers: Callers) -> None:
        self._store = store
        self._callers = callers
        self._page_key = fresh_key()

    def PinPrefix(
        self, request: pb.PinPrefixRequest, context: grpc.ServicerContext
    ) -> pb.PinPrefixResponse:
        """Pins what is cached of a prefix."""
        ttl = fields.seconds("ttl", request.ttl) if request.HasField("ttl") else None
        pinned = self._store.named_pins.pin(
            self._callers.identity(context),
            fields.random_id("namespace_id", request.namespace_id),
            NamedPinRequest(
                fields.chosen_name("name", request.name, self._store.limits),
                fields.tokens(request.tokens, 0, self._store.limits),
                ttl,
                request.require_all,
            ),
        )
        return pb.PinPrefixResponse(pinned_token_count=pinned)

    def UnpinPrefix(
        self, request: pb.UnpinPrefixRequest, context: grpc.ServicerContext
    ) -> pb.UnpinPrefixResponse:
        """Ends a named pin."""
        self._store.named_pins.unpin(
            self._callers.identity(context),
            fields.random_id("namespace_id", request.namespace_id),
            fields.chosen_name("name", request.name, self._store.limits),
        )
        return pb.UnpinPrefixResponse()

    def ListPins(
        self, request: pb.ListPinsRequest, context: grpc.ServicerContext
    ) -> pb.ListPinsResponse:
        """List named pins in the order of their making."""
        namespace_id = None
        if request.namespace_id:
            namespace_id = fields.random_id("namespace_id", request.namespace_id)
        identity = self._callers.identity(context)
        page = PageTokens(self._page_key, b"pins of " + request.namespace_id, identity).page(
            self._store.named_pins.visible(identity, namespace_id),
            lambda pin: pin.number,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListPinsResponse(
            pins=[report.named_pin_message(each) for each in page.entries],
            next_page_token=page.next_page_token,
        )
