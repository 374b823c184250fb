"""``kvstore-server``: the program. It names the missing extra if its packages are not installed."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

# The core of gRPC writes lines of its own to stderr. They contain the server name of a TLS
# handshake as it came, line ends included, so a stranger could write what looks like our log.
# To see why a handshake fails, set GRPC_VERBOSITY=error. grpc reads the variable at its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# The status that argparse uses for a wrong command line.
EXIT_USAGE: Final = 2
OURS: Final = frozenset({"kvstore"})
# Imported with the first copy of a page, since a server that takes over has to start quickly.
LATER: Final = ("numpy",)


def main(arguments: Sequence[str] | None = None, **parts: Any) -> int:  # noqa: ANN401
    """Runs ``kvstore.server.run`` and returns its exit status; 2 if a package is missing."""
    try:
        for name in LATER:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)  # noqa: TRY301 - as its import would
        server = import_module("kvstore.server")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OURS:
            raise
        sys.stderr.write(
            f"kvstore-server needs {missing}, which is not installed: "
            "the extra 'server' has it (pip install '.[server]' from a checkout)\n"
        )
        return EXIT_USAGE
    status: int = server.run(arguments, **parts)
    return status


if __name__ == "__main__":
    sys.exit(main())
