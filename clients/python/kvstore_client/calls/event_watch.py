"""A stream of a store's events."""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Self

import grpc

from kvstore.v1 import store_pb2
from kvstore_client.errors import StoreUnavailable, error_of_call


class History(Enum):
    """The earlier events that a watch begins with."""

    NONE = store_pb2.WatchEventsRequest.HISTORY_UNSPECIFIED
    FIRST = store_pb2.WatchEventsRequest.HISTORY_FIRST
    # The watch ends after the earlier events.
    ALONE = store_pb2.WatchEventsRequest.HISTORY_ALONE


class EventWatch:
    """An iterator of events, and a context manager that ends it. One thread reads it.

    The store sends events from the moment that the watch exists. The watch misses only the
    events that ``lost_event_count`` of an event counts. ``began`` has the store's epoch and
    time. Iteration ends at the watch's timeout or by :meth:`close`. It raises ``StoreError``
    if the store ended the watch.
    """

    def __init__(self, call: Any) -> None:  # noqa: ANN401  # stubs are untyped
        """Reads the first answer of the stream ``call``; raises ``StoreError`` if none came."""
        self._call = call
        self._closed = False
        # Events that came together and were not returned yet.
        self._come: deque[store_pb2.WatchEventsResponse] = deque()
        try:
            self.began: store_pb2.WatchEventsResponse = next(call)
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        except StopIteration:
            raise StoreUnavailable("the watch ended before it began") from None

    def __iter__(self) -> Iterator[store_pb2.WatchEventsResponse]:
        """Returns itself."""
        return self

    def __next__(self) -> store_pb2.WatchEventsResponse:
        """Waits for the next event and returns it."""
        if self._closed:
            raise StopIteration
        while not self._come:
            try:
                answer: store_pb2.WatchEventsResponse = next(self._call)
            except grpc.RpcError as error:
                if self._closed or _is_over(error):
                    raise StopIteration from None
                raise error_of_call(error) from None
            is_batch = answer.WhichOneof("event") == "batch"
            self._come.extend(answer.batch.events if is_batch else (answer,))
        return self._come.popleft()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the watch."""
        self.close()

    def close(self) -> None:
        """Ends the watch, from any thread; can be repeated."""
        self._closed = True
        self._call.cancel()


def _is_over(error: grpc.RpcError) -> bool:
    """Returns whether a call ended at its deadline."""
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
