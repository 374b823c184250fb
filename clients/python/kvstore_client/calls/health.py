"""Health checks by grpc.health.v1, which need no credential and no lease."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = "SERVING"
# A supervisor sends work by readiness, and replaces the process by liveness.
READINESS = "readiness"
LIVENESS = "liveness"


def health_of(channel: grpc.Channel, service: str = READINESS, *, timeout: float) -> str:
    """Returns the health of a service, such as ``SERVING`` or ``NOT_SERVING``.

    Returns the name of the call's status code if the store does not answer within
    ``timeout`` seconds, such as ``UNAVAILABLE`` or ``DEADLINE_EXCEEDED``.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        return str(code.name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
