"""``python -m gpu_machine.probes NAME``: asks one question and prints the answer as JSON.

``answer`` is yes, no or measured, and ``why`` a reason or the main figure. Exit status 0: the probe
has an answer. 1: it has none, and ``why`` says what failed. 77: there is no CUDA device.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from gpu_machine.probes import copies, descriptors, host, kills, sharing, system
from gpu_machine.probes.driver import why_no_device

FAILED: Final = 1
USAGE: Final = 2
# The status of automake's tests that cannot run.
NO_DEVICE: Final = 77
# Needs no device.
ON_THE_HOST: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "kernel": system.kernel,
    "memory": host.memory,
}
# In an order in which each is useful only if those before it answered yes.
ON_THE_DEVICE: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    each.__name__: each
    for each in (
        *(sharing.mapped, sharing.exporter_killed),
        *(kills.killed, kills.killed_beside_a_fork, kills.killed_beside_a_fork_that_closed),
        *(sharing.importer_of_another_user, sharing.exporter_of_another_user),
        *(sharing.importer_in_a_pid_namespace, sharing.equal_pids),
        *(copies.registration, copies.transfer),
        *(descriptors.by_descriptor, descriptors.by_descriptor_read_only),
        descriptors.by_descriptor_for_another_user,
    )
}
PROBES: Final = {**ON_THE_HOST, **ON_THE_DEVICE}


def main(arguments: list[str]) -> int:
    """Runs the probe of a name and returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in PROBES:
        sys.stderr.write(f"usage: python -m gpu_machine.probes {'|'.join(PROBES)}\n")
        return USAGE
    name = arguments[0]
    if name in ON_THE_DEVICE and (missing := why_no_device()) is not None:
        return _say(name, NO_DEVICE, why=f"no CUDA device: {missing}")
    try:
        return _say(name, 0, **PROBES[name]())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return _say(name, FAILED, why=f"{type(error).__name__}: {error}")


def _say(name: str, status: int, **facts: object) -> int:
    sys.stdout.write(json.dumps({"probe": name, **facts}) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
