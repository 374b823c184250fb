"""``kvstore-ctl``: starts the program, or names the extra that it lacks."""

import sys
from importlib import import_module
from typing import Final

# The status of argparse and click for a command that cannot run.
USAGE_STATUS: Final = 2
PROGRAM: Final = "kvstore_ctl.app"
OURS: Final = frozenset({"kvstore", "kvstore_client", "kvstore_ctl"})


def main() -> None:
    """Runs the program. Ends with ``USAGE_STATUS`` if a package is not installed."""
    try:
        program = import_module(PROGRAM)
        program.main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OURS:
            raise
        sys.stderr.write(
            f"kvstore-ctl needs {missing}, which is not installed: "
            "the extra 'ctl' has it (pip install '.[ctl]' from a checkout)\n"
        )
        sys.exit(USAGE_STATUS)


if __name__ == "__main__":
    main()
