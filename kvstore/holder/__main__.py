"""``kvstore-holder``: the program. It becomes the holder's one file, without other packages."""

import os
import sys
from collections.abc import Sequence

from kvstore.holder.holder_process import holder_command


def main(arguments: Sequence[str] | None = None) -> None:
    """Replaces this process by the holder, with the same arguments. Does not return."""
    command = holder_command(sys.argv[1:] if arguments is None else arguments)
    os.execv(command[0], command)  # noqa: S606  # our own interpreter and file


if __name__ == "__main__":
    main()
