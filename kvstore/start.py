"""``kvstore-server``: where it starts, and what it says where the server's extra is missing."""

import sys
from importlib import import_module
from typing import Final

# Of argparse: the command cannot be run as it was asked.
USAGE_STATUS: Final = 2
PROGRAM: Final = "kvstore.__main__"
OURS: Final = frozenset({"kvstore"})


def main() -> int:
    """Runs the program and returns its status; 2 where what it is made of is not installed."""
    try:
        program = import_module(PROGRAM)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OURS:
            raise
        sys.stderr.write(
            f"kvstore-server needs {missing}, which is not installed: "
            "the extra 'server' has it (pip install '.[server]' from a checkout)\n"
        )
        return USAGE_STATUS
    status: int = program.main()
    return status
