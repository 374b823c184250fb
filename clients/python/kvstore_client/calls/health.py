"""Asks a store how it is, by grpc.health.v1, which needs no credential and holds nothing."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = "SERVING"
# What a supervisor asks for: whether to send work here, and whether to replace the process.
READINESS = "readiness"
LIVENESS = "liveness"


def health_of(channel: grpc.Channel, service: str = READINESS, *, timeout: float) -> str:
    """Returns what the store says of a service, such as ``SERVING`` or ``NOT_SERVING``.

    Where it says nothing within ``timeout`` seconds: the name of the status code
    that the call ended with, such as ``UNAVAILABLE`` or ``DEADLINE_EXCEEDED``.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        return str(code.name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
