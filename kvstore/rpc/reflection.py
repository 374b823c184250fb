"""Server reflection with a bound on its streams."""

from collections.abc import Iterable, Iterator
from threading import Semaphore

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from kvstore.errors import QuotaExceeded
from kvstore.rpc.wire import status

# An open stream occupies a thread until its client closes it. Tools open one briefly.
MAX_STREAMS = 4


class BoundedReflection(reflection.ReflectionServicer):  # type: ignore[misc]  # it is untyped
    """A reflection servicer with at most ``max_streams`` open streams."""

    def __init__(self, service_names: Iterable[str], max_streams: int = MAX_STREAMS) -> None:
        super().__init__(service_names)
        self._max_streams = max_streams
        self._available = Semaphore(max_streams)

    def ServerReflectionInfo(  # noqa: N802 - the proto's name
        self,
        request_iterator: Iterator[reflection_pb2.ServerReflectionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[reflection_pb2.ServerReflectionResponse]:
        """Answers each request of a stream. Ends the call with QuotaExceeded above the bound."""
        if not self._available.acquire(blocking=False):
            status.abort(
                context, QuotaExceeded(quota="reflection_streams", maximum=self._max_streams)
            )
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            self._available.release()
