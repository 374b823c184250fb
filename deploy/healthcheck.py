"""Exits 0 if the store in $KVSTORE_RUNTIME_DIR says SERVING, else 1 with a line that says why.

For supervisors that run a command to learn how a container is. It speaks grpc.health.v1, which
needs no credential, and holds nothing.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore_client.runtime_dir import RuntimeDir

# Seconds: a store that takes longer than that is not well.
TIMEOUT = 2.0


def main() -> int:
    """Ask once, and return the exit status."""
    runtime_dir = RuntimeDir()
    request = health_pb2.HealthCheckRequest()
    with grpc.insecure_channel(runtime_dir.grpc_target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            print(f"{runtime_dir.path}: {error.code().name}")
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"{runtime_dir.path}: {status}")
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
