"""The first steps of a process at a store's sockets: hello, bind, capabilities, lanes."""

from collections.abc import Mapping
from types import MappingProxyType

from kvstore.v1 import attach_pb2, store_pb2
from kvstore_client.calls.attach_connection import AttachConnection
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.lane_pool import FEATURE, LanePool
from kvstore_client.config import ClientConfig
from kvstore_client.errors import StoreUnavailable
from kvstore_client.memory.shared_memory import MemoryIdentity
from kvstore_client.runtime_dir import RuntimeDir


class Handshake:
    """A connection and a channel to one server, under one lease, until a session takes them.

    One thread calls the methods. :meth:`abort`, from any thread, makes them fail soon. All raise
    ``StoreError``.
    """

    def __init__(
        self, runtime_dir: RuntimeDir, config: ClientConfig, lease_id: bytes, secret: bytes
    ) -> None:
        self.connection = AttachConnection(runtime_dir.attach_socket)
        self._runtime_dir = runtime_dir
        self._config = config
        self._lease_id = lease_id
        self._secret = secret
        self._calls: StoreCalls | None = None
        self._aborted = False

    @property
    def calls(self) -> StoreCalls:
        """The calls to the store, after :meth:`hello`."""
        assert self._calls is not None
        return self._calls

    def hello(self, deadline: Deadline) -> attach_pb2.Welcome:
        """Connects, and returns the store's welcome."""
        welcome = self.connection.hello(
            self._config.display_name, cuda_mps=self._config.cuda_mps, deadline=deadline
        )
        self._calls = StoreCalls(self._runtime_dir.grpc_target, welcome.credential, self._secret)
        if self._aborted:
            raise StoreUnavailable("given up by this client")
        return welcome

    def bind(
        self, deadline: Deadline, mapped: Mapping[int, MemoryIdentity] = MappingProxyType({})
    ) -> attach_pb2.Bound:
        """Attaches this process to the lease, with the extents that it has mapped before."""
        return self.connection.bind(self._lease_id, self._secret, deadline, mapped)

    def capabilities(self, deadline: Deadline) -> store_pb2.GetCapabilitiesResponse:
        """Returns the store's limits and features."""
        answer: store_pb2.GetCapabilitiesResponse = self.calls.call_cancellably(
            self.calls.store.GetCapabilities,
            store_pb2.GetCapabilitiesRequest(),
            deadline.remaining(),
        )
        return answer

    def use_lanes(self, capabilities: store_pb2.GetCapabilitiesResponse) -> None:
        """Makes the calls of the request path over lanes, if both sides want them."""
        if self._config.hot_lane and FEATURE in capabilities.features:
            self.calls.use_lanes(LanePool(self._open_lane))

    def abort(self) -> None:
        """Makes the method that runs fail, and all later ones."""
        self._aborted = True
        self.connection.abort()
        if self._calls is not None:
            self._calls.cancel()

    def close(self) -> None:
        """Closes both. Can be repeated."""
        self.connection.close()
        if self._calls is not None:
            self._calls.close()

    def _open_lane(self, timeout: float) -> Lane:
        lane = Lane(self._runtime_dir.attach_socket)
        try:
            lane.open(self._config.display_name, self._lease_id, self._secret, Deadline(timeout))
        except BaseException:
            lane.close()
            raise
        return lane
