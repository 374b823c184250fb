"""Exits 0 if the store in $KVSTORE_RUNTIME_DIR says SERVING, else 1 with a line that says why.

For supervisors that run a command to learn how a container is, and replace it: by default it asks
whether the store takes new work; with the argument `liveness`, whether it lives.
"""

import sys

import grpc

from kvstore_client.calls.health import READINESS, SERVING, health_of
from kvstore_client.runtime_dir import RuntimeDir

# Seconds: a store that takes longer than that is not well.
TIMEOUT = 2.0


def main() -> int:
    """Asks once, and returns the exit status."""
    runtime_dir = RuntimeDir()
    service = sys.argv[1] if len(sys.argv) > 1 else READINESS
    with grpc.insecure_channel(runtime_dir.grpc_target) as channel:
        answer = health_of(channel, service, timeout=TIMEOUT)
    print(f"{runtime_dir.path}: {answer}")
    return 0 if answer == SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
