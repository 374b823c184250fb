"""``kvstore-worker``: where it starts, and what it says where the worker's extra is missing."""

import sys
from importlib import import_module
from typing import Final

from inference_worker.device_lost import end_process
from inference_worker.errors import DeviceLostError

# Of argparse and click: the command cannot be run as it was asked.
USAGE_STATUS: Final = 2
# What each command imports: ``serve`` starts sooner without the torch of the others. Its server
# comes first, so that a package that is missing is reported before the command runs.
PROGRAMS: Final = {"serve": ("inference_worker.fleet.server", "inference_worker.commands.serve")}
PROGRAM: Final = ("inference_worker.commands.program",)
OURS: Final = frozenset({"inference_worker", "kvstore", "kvstore_client"})


def main() -> None:
    """Runs the program.

    Exits with ``USAGE_STATUS`` if a package is not installed, and with ``DEVICE_LOST_STATUS`` if
    its device fails for good.
    """
    try:
        names = PROGRAMS.get("".join(sys.argv[1:2]), PROGRAM)
        program = [import_module(name) for name in names][-1]
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OURS:
            raise
        sys.stderr.write(
            f"kvstore-worker needs {missing}, which is not installed: "
            "the extra 'worker' has it (pip install '.[worker]' from a checkout)\n"
        )
        sys.exit(USAGE_STATUS)
    try:
        program.app()
    except DeviceLostError as lost:
        end_process(lost)


if __name__ == "__main__":
    main()
