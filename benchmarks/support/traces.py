"""The messages of a benchmark whose trace is not usable."""

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
    """Ends the command with status 2 and one line if reading a trace raises ``ValueError``."""
    try:
        yield
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None


def asking(path: Path, requests: Iterable[Asked], tokens_of: Callable[[Asked], int]) -> list[Asked]:
    """Returns a trace's requests. Raises ``ValueError`` if none of them has tokens."""
    asked = list(requests)
    if not any(map(tokens_of, asked)):
        raise ValueError(f"{path}: no request has tokens")
    return asked
