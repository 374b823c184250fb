"""A client's sender of what is given back, and what came over a scripted wire."""

from threading import Event

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.calls.deadlines import Backoff
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.lifecycle.release_sender import ReleaseSender
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_store import ScriptedCalls


class Sending:
    """A sender of batches of two, and what it told besides the wire."""

    def __init__(self, runtime_dir: RuntimeDir) -> None:
        self.calls = StoreCalls(runtime_dir.grpc_target, "me", b"secret")
        self.unmapped: list[int] = []
        self.lingering: list[int] = []
        self.closed = Event()
        self.sender = ReleaseSender(
            LeaseCalls(self.calls, b"lease", 5),
            call_timeout=30,
            backoff=Backoff(0.001, 0.001),
            max_batch_size=2,
            tell_unmapped=self.unmapped.extend,
            closed=self.closed.set,
            lingering=lambda: self.lingering,
        )


def pins_released(scripted: ScriptedCalls) -> list[list[int]]:
    """Returns the pins of each release that came."""
    requests = scripted.requests.get("ReleasePins", [])
    return [list(prefix_cache_pb2.ReleasePinsRequest.FromString(r).pin_ids) for r in requests]
