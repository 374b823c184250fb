"""NamedPinService over a real server."""

import grpc
import pytest
from rpc_world import Refused, Server

from kvstore.v1 import named_pin_pb2 as pb


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("PinPrefix", pb.PinPrefixRequest()),
        ("UnpinPrefix", pb.UnpinPrefixRequest()),
        ("ListPins", pb.ListPinsRequest()),
    ],
)
def test_named_pins_are_not_built_and_say_so(server: Server, method: str, request_: object) -> None:
    """Every method is UNIMPLEMENTED with an ErrorInfo that names it."""
    worker = server.worker()
    with pytest.raises(Refused) as caught:
        worker.ask(getattr(worker.named_pin, method), request_)
    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.reason == "FEATURE_UNSUPPORTED"
    assert caught.value.metadata == {"feature": method}
