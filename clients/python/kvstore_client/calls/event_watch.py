"""What happens in a store, as the store tells it."""

from collections.abc import Iterator
from enum import Enum
from types import TracebackType
from typing import Any, Self

import grpc

from kvstore.v1 import store_pb2
from kvstore_client.errors import StoreUnavailable, error_of_call


class History(Enum):
    """Whether a watch begins with what the store remembers of the time before."""

    NONE = store_pb2.WatchEventsRequest.HISTORY_UNSPECIFIED
    FIRST = store_pb2.WatchEventsRequest.HISTORY_FIRST
    # And ends after it.
    ALONE = store_pb2.WatchEventsRequest.HISTORY_ALONE


class EventWatch:
    """An iterator of events, and a context manager that ends it. One thread reads it.

    Once it is made the store tells what happens: nothing between that and the first look at
    it is missed, but for what ``lost_event_count`` of an event says. ``began`` has the
    store's epoch and time. Iteration ends with the time that the watch was given, or by
    :meth:`close`, and raises ``StoreError`` where the store ended it.
    """

    def __init__(self, call: Any) -> None:  # noqa: ANN401  # stubs are untyped
        """``call`` is the stream under way; raises ``StoreError`` where it did not begin."""
        self._call = call
        self._closed = False
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
        try:
            event: store_pb2.WatchEventsResponse = next(self._call)
        except grpc.RpcError as error:
            if self._closed or _is_over(error):
                raise StopIteration from None
            raise error_of_call(error) from None
        return event

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the watch."""
        self.close()

    def close(self) -> None:
        """Ends the watch, from any thread; can be repeated."""
        self._closed = True
        self._call.cancel()


def _is_over(error: grpc.RpcError) -> bool:
    """Returns whether a call ended with its time."""
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
