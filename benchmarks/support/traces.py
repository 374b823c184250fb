"""What a benchmark says where nothing can be made of a trace."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import typer

EXIT_USAGE = 2

Asked = TypeVar("Asked")


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


def asking(path: Path, requests: Iterable[Asked], tokens_of: Callable[[Asked], int]) -> list[Asked]:
    """Returns a trace's requests; raises ``ValueError`` where all of them ask for no tokens."""
    asked = list(requests)
    if not any(map(tokens_of, asked)):
        raise ValueError(f"{path}: it asks for no tokens")
    return asked
