"""``kvstore-worker``: starts the program, and names a package that is missing."""

import sys
from importlib import import_module
from typing import Final

from inference_worker.errors import DeviceLostError, end_process

# The status of argparse and click for a command that cannot run as given.
USAGE_STATUS: Final = 2
# What each command imports: ``serve`` starts sooner without the torch of the others. Its server
# comes first, so that a package that is missing is reported before the command runs.
PROGRAMS: Final = {"serve": ("inference_worker.fleet.server", "inference_worker.commands.serve")}
PROGRAM: Final = ("inference_worker.commands.program",)
OURS: Final = frozenset({"inference_worker", "kvstore", "kvstore_client"})


def main() -> None:
    """Runs the program.

    Exits with ``USAGE_STATUS`` if a package is not installed, and with ``DEVICE_LOST_STATUS`` if
    the device fails for good.
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
            "install the extra 'worker' (pip install '.[worker]' in a checkout)\n"
        )
        sys.exit(USAGE_STATUS)
    try:
        program.app()
    except DeviceLostError as lost:
        end_process(lost)


if __name__ == "__main__":
    main()
