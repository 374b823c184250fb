"""How kvstore-ctl speaks: to a store, to people, to programs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from kvstore_client.admin import Admin, connect_admin, connect_remote_admin
from kvstore_client.errors import StoreError, StoreRefused
from kvstore_ctl.options import prefer_typed, remote_of, require_here

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
# Seconds: an operator waits, but not for ever.
TIMEOUT = 10.0
# A pipe has no width of its own; tables of ids want room.
PIPE_WIDTH = 260

AsJson = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON value instead of tables.")
]
Wide = Annotated[
    bool,
    typer.Option(
        "--wide",
        metavar="",
        help="Show all columns and whole ids, as records where the terminal has no room.",
    ),
]
RuntimeDirOption = Annotated[
    Path | None,
    typer.Option(
        "--runtime-dir",
        envvar="KVSTORE_RUNTIME_DIR",
        callback=prefer_typed,
        help="Folder of the store's sockets."
        " Default: $XDG_RUNTIME_DIR/kvstore, else /tmp/kvstore-UID.",
    ),
]


@contextmanager
def store_failures() -> Iterator[None]:
    """End the command with its exit status where the store fails, and say why on stderr.

    A ``ValueError`` of the block ends it too, as a command line that is wrong.
    """
    try:
        yield
    except StoreRefused as error:
        status, reason = EXIT_REFUSED, str(error)
    except StoreError as error:
        status, reason = EXIT_UNREACHABLE, str(error)
    except ValueError as error:
        status, reason = EXIT_USAGE, str(error)
    else:
        return
    typer.echo(f"kvstore-ctl: {reason}", err=True)
    raise typer.Exit(status)


@contextmanager
def connected(runtime_dir: Path | None, *, here: bool = False) -> Iterator[Admin]:
    """Connect; ends the command with its exit status where the store fails.

    To the address that the program was given, else to this host's store; with ``here``
    to that, whatever address the environment has. Failures of the block end it as
    :func:`store_failures` does.
    """
    with store_failures(), admin_of(runtime_dir, here=here) as admin:
        yield admin


@contextmanager
def admin_of(runtime_dir: Path | None, *, here: bool = False) -> Iterator[Admin]:
    """Connect as :func:`connected` does. Raises ``StoreError``, and ``ValueError``."""
    remote = None
    if here:
        require_here()
    else:
        remote = remote_of()
    with (
        connect_admin(runtime_dir, timeout=TIMEOUT)
        if remote is None
        else connect_remote_admin(remote, timeout=TIMEOUT)
    ) as admin:
        yield admin


def confirm(question: str) -> None:
    """Asks on stderr, and end the command unless the answer is yes.

    Where stdin is closed or at its end it says that --yes does not ask.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except (typer.Abort, RuntimeError):
        # The latter where there is no stdin at all.
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        reason = "nobody answered, and nothing was done: --yes does not ask"
        typer.echo(f"\nkvstore-ctl: {reason}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    if not agreed:
        raise typer.Abort


def show(*shown: RenderableType) -> None:
    """Prints tables and trees, as wide as the terminal."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for each in shown:
        console.print(each)


def show_json(value: object) -> None:
    """Prints one JSON value."""
    typer.echo(json.dumps(value, indent=2))
