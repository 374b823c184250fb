"""The limit of open reflection streams, so that they cannot take all threads."""

from collections.abc import Iterator
from queue import SimpleQueue

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvstore.rpc.reflection import MAX_STREAMS
from kvstore.rpc.server import SERVICES
from stores.rpc_world import Server, refusal_of

LIST = reflection_pb2.ServerReflectionRequest(list_services="")


class Stream:
    """A reflection stream that stays open until it is closed."""

    def __init__(self, server: Server) -> None:
        self._requests: SimpleQueue[reflection_pb2.ServerReflectionRequest | None] = SimpleQueue()
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        self.answers = stub.ServerReflectionInfo(iter(self._requests.get, None), timeout=30)

    def names(self) -> set[str]:
        """Returns the names of the services, as reflection answers them."""
        self._requests.put(LIST)
        answer = next(self.answers)
        return {service.name for service in answer.list_services_response.service}

    def close(self) -> None:
        """Ends the stream and waits until the server noticed."""
        self._requests.put(None)
        assert list(self.answers) == []


@pytest.fixture
def streams(server: Server) -> Iterator[list[Stream]]:
    """Provides as many open streams as the limit allows."""
    opened = [Stream(server) for _ in range(MAX_STREAMS)]
    for stream in opened:
        stream.names()
    yield opened
    for stream in opened:
        stream.close()


def test_it_lists_our_services(streams: list[Stream]) -> None:
    """Reflection lists all services of the contract, health and itself."""
    extra = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert streams[0].names() == {*SERVICES, *extra}


def test_one_stream_too_many_is_refused(server: Server, streams: list[Stream]) -> None:
    """One stream over the limit ends with QUOTA_EXCEEDED until another one is closed."""
    with pytest.raises(grpc.RpcError) as caught:
        Stream(server).names()
    assert refusal_of(caught.value).reason == "QUOTA_EXCEEDED"
    streams.pop().close()
    streams.append(Stream(server))
    assert streams[-1].names()
