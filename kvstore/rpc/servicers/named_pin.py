"""NamedPinService: each method reads the request, makes one call, and answers."""

from kvstore.core import NamedPinRequest
from kvstore.rpc.pipeline import Call
from kvstore.rpc.wire import fields, report
from kvstore.rpc.wire.fields import PageTokens, fresh_key
from kvstore.service.store import KVStore
from kvstore.v1 import named_pin_pb2 as pb


class NamedPinServicer:
    """Named pins. Raises KVStoreError, which the pipeline turns into statuses."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._page_key = fresh_key()

    def PinPrefix(self, request: pb.PinPrefixRequest, call: Call) -> pb.PinPrefixResponse:
        """Pins what is cached of a prefix."""
        ttl = fields.seconds("ttl", request.ttl) if request.HasField("ttl") else None
        pinned = self._store.named_pins.pin(
            call.who,
            request.namespace_id,
            NamedPinRequest(
                fields.chosen_name("name", request.name, self._store.limits),
                request.tokens,
                ttl,
                request.require_all,
            ),
        )
        return pb.PinPrefixResponse(pinned_token_count=pinned)

    def UnpinPrefix(self, request: pb.UnpinPrefixRequest, call: Call) -> pb.UnpinPrefixResponse:
        """Ends a named pin."""
        self._store.named_pins.unpin(
            call.who,
            request.namespace_id,
            fields.chosen_name("name", request.name, self._store.limits),
        )
        return pb.UnpinPrefixResponse()

    def ListPins(self, request: pb.ListPinsRequest, call: Call) -> pb.ListPinsResponse:
        """Lists named pins in the order in which they were made."""
        namespace_id = None
        if request.namespace_id:
            namespace_id = fields.random_id("namespace_id", request.namespace_id)
        page = PageTokens(self._page_key, b"pins of " + request.namespace_id, call.who).page(
            self._store.named_pins.visible(call.who, namespace_id),
            lambda pin: pin.number,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListPinsResponse(
            pins=[report.named_pin_message(each) for each in page.entries],
            next_page_token=page.next_page_token,
        )
