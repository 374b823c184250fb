"""NamedPinService: not built into this server yet, and says so."""

from typing import NoReturn

import grpc

from kvstore.errors import FeatureUnsupported
from kvstore.v1 import named_pin_pb2 as pb
from kvstore.v1 import named_pin_pb2_grpc


class NamedPinServicer(named_pin_pb2_grpc.NamedPinServiceServicer):
    """Refuses every method with FeatureUnsupported, changing nothing."""

    def PinPrefix(self, request: pb.PinPrefixRequest, context: grpc.ServicerContext) -> NoReturn:
        """Refuse."""
        raise FeatureUnsupported(feature="PinPrefix")

    def UnpinPrefix(
        self, request: pb.UnpinPrefixRequest, context: grpc.ServicerContext
    ) -> NoReturn:
        """Refuse."""
        raise FeatureUnsupported(feature="UnpinPrefix")

    def ListPins(self, request: pb.ListPinsRequest, context: grpc.ServicerContext) -> NoReturn:
        """Refuse."""
        raise FeatureUnsupported(feature="ListPins")
