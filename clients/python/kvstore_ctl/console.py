"""Connections, output and exit statuses of the commands of kvstore-ctl."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, TypeVar

import typer
from rich.console import Console, RenderableType

from kvstore_client.admin import Admin, connect_admin, connect_remote_admin
from kvstore_client.errors import (
    LeaseNotFound,
    NamespaceNotFound,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from kvstore_client.remote_store import RemoteStore
from kvstore_ctl.store_options import prefer_typed, remote_of, require_here

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
# What to do if a store does not answer.
ADVICE = (
    "Start kvstore-server, or name its folder with --runtime-dir;"
    " kvstore-ctl doctor looks for the cause."
)
# Seconds for each call, because an operator does not wait forever.
TIMEOUT = 10.0
# A pipe has no width of its own, and tables of ids are wide.
PIPE_WIDTH = 260
Result = TypeVar("Result")

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
    """Ends the command with its exit status if the store fails, and prints the reason on stderr.

    A ``ValueError`` of the block ends it too, as a wrong command line does.
    """
    try:
        yield
    except StoreRefused as error:
        status, reason = EXIT_REFUSED, str(error)
    except StoreError as error:
        status, reason = EXIT_UNREACHABLE, f"{error}\n{ADVICE}"
    except ValueError as error:
        status, reason = EXIT_USAGE, str(error)
    else:
        return
    typer.echo(f"kvstore-ctl: {reason}", err=True)
    raise typer.Exit(status)


@contextmanager
def connected(runtime_dir: Path | None, *, here: bool = False) -> Iterator[Admin]:
    """Connects to the given address, or else to this host's store.

    With ``here`` it connects to this host's store, even if the environment has an address.
    Failures of the connection and of the block end the command, as :func:`store_failures` does.
    """
    with store_failures():
        remote = None
        if here:
            require_here()
        else:
            remote = remote_of()
        with _connect(runtime_dir, remote) as admin:
            yield admin


class StoreConnection:
    """A connection that reconnects after an error, such as a restart. Thread-safe."""

    def __init__(self, runtime_dir: Path | None) -> None:
        """Connects at the first call. Raises ``ValueError`` for options that contradict."""
        self._runtime_dir = runtime_dir
        # Read here, because the options belong to this thread's context.
        self._remote = remote_of()
        self._mutex = Lock()
        self._connection = ExitStack()
        self._admin: Admin | None = None

    def ask(self, call: Callable[[Admin], Result]) -> Result:
        """Returns the result of a call. Raises ``StoreError``; the next call connects again."""
        with self._mutex:
            if self._admin is None:
                connection = _connect(self._runtime_dir, self._remote)
                self._admin = self._connection.enter_context(connection)
            admin = self._admin
        try:
            return call(admin)
        except (LeaseNotFound, NamespaceNotFound):
            raise
        except StoreError:
            self._drop(admin)
            raise
        except ValueError as error:
            # gRPC raises it if another thread's call failed and closed the channel.
            raise StoreUnavailable(str(error)) from error

    def close(self) -> None:
        """Closes the connection. Can be repeated."""
        self._drop(self._admin)

    def _drop(self, admin: Admin | None) -> None:
        with self._mutex:
            if admin is self._admin:
                self._admin = None
                self._connection.close()


def _connect(runtime_dir: Path | None, remote: RemoteStore | None) -> AbstractContextManager[Admin]:
    if remote is None:
        return connect_admin(runtime_dir, timeout=TIMEOUT)
    return connect_remote_admin(remote, timeout=TIMEOUT)


def confirm(question: str) -> None:
    """Asks on stderr, and ends the command unless the answer is yes.

    If stdin is closed or at its end, it names the option --yes.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except (typer.Abort, RuntimeError):
        # RuntimeError means that there is no stdin at all.
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        reason = "no answer on stdin, so nothing was done: repeat with --yes"
        typer.echo(f"\nkvstore-ctl: {reason}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    if not agreed:
        raise typer.Abort


def warn_unsettled(*, unsettled: bool) -> None:
    """Says on stderr that removed pages may return, if tier 3 has not confirmed a removal."""
    if unsettled:
        typer.echo(
            "kvstore-ctl: tier 3 has not confirmed the removal yet, so the pages may return; "
            "kvstore-ctl doctor says what to do",
            err=True,
        )


def show(*shown: RenderableType) -> None:
    """Prints tables and trees in the width of the terminal."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for each in shown:
        console.print(each)


def show_json(value: object) -> None:
    """Prints one JSON value."""
    typer.echo(json.dumps(value, indent=2))
