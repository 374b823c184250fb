"""What a benchmark says where a trace cannot be read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

EXIT_USAGE = 2


@contextmanager
def readable() -> Iterator[None]:
    """End the command with status 2 and one line on stderr where the block finds no trace.

    As those who read one say it: by a ``ValueError``.
    """
    try:
        yield
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
