"""kvstore-ctl: looks into a running store.

Exit status: 0 done; 1 the store refused; 2 the command line is wrong; 3 the
store cannot be reached.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from kvstore_client import tables
from kvstore_client.admin import Admin, connect_admin
from kvstore_client.errors import StoreRefused, StoreUnavailable
from kvstore_client.message_json import plain
from kvstore_client.tokens import unpack_tokens

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
# Seconds: an operator waits, but not for ever.
TIMEOUT = 10.0
# A pipe has no width of its own; tables of ids want room.
PIPE_WIDTH = 200

app = typer.Typer(name="kvstore-ctl", help=__doc__, add_completion=False, no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
RuntimeDirOption = Annotated[
    Path | None,
    typer.Option(
        "--runtime-dir",
        envvar="KVSTORE_RUNTIME_DIR",
        help="Folder of the store's sockets. Default: $XDG_RUNTIME_DIR/kvstore.",
    ),
]


@app.command()
def stats(*, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False) -> None:
    """Show one consistent snapshot of counters, arenas, namespaces and leases."""
    with _admin(runtime_dir) as admin:
        snapshot = admin.stats()
    if as_json:
        _print_json(plain(snapshot))
        return
    _print(
        tables.totals_table(snapshot),
        tables.arenas_table(snapshot.arenas),
        tables.namespaces_table(snapshot.namespaces),
        tables.leases_table(snapshot.leases),
    )


@app.command()
def leases(*, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False) -> None:
    """Show the workers' leases and what each holds."""
    with _admin(runtime_dir) as admin:
        listed = admin.leases()
    if as_json:
        _print_json([plain(each) for each in listed])
    else:
        _print(tables.leases_table(listed))


@app.command()
def tree(
    *,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
    namespace: Annotated[
        str, typer.Option(help="Only namespaces whose id or name begins like this.")
    ] = "",
    tokens: Annotated[
        int, typer.Option(min=0, help="Show that many token ids of each run: they are content.")
    ] = 0,
) -> None:
    """Show each namespace's radix tree: pages, pins and hits of every run."""
    with _admin(runtime_dir) as admin:
        shown = [
            (each, list(admin.prefixes(each.namespace_id, max_tokens=tokens)))
            for each in admin.namespaces()
            if each.namespace_id.hex().startswith(namespace)
            or each.identity.display_name.startswith(namespace)
        ]
    if not as_json:
        _print(*(tables.prefix_tree(each, prefixes) for each, prefixes in shown))
        return
    _print_json(
        [
            plain(each)
            | {"nodes": [plain(p) | {"tokens": unpack_tokens(p.tokens)} for p in prefixes]}
            for each, prefixes in shown
        ]
    )


@app.command()
def token(*, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False) -> None:
    """Print a credential of this user, for clients that cannot attach, such as grpcurl.

    It goes with each call as the header "authorization: Bearer CREDENTIAL", and
    holds until the store restarts.
    """
    with _admin(runtime_dir) as admin:
        credential = admin.credential
    if as_json:
        _print_json({"credential": credential})
    else:
        typer.echo(credential)


def main() -> None:
    """Run the command line and end the process with its exit status."""
    app()


@contextmanager
def _admin(runtime_dir: Path | None) -> Iterator[Admin]:
    """Connect; ends the command with its exit status where the store fails."""
    try:
        with connect_admin(runtime_dir, timeout=TIMEOUT) as admin:
            yield admin
    except StoreRefused as error:
        status, reason = EXIT_REFUSED, str(error)
    except StoreUnavailable as error:
        status, reason = EXIT_UNREACHABLE, str(error)
    except ValueError as error:
        status, reason = EXIT_USAGE, str(error)
    else:
        return
    typer.echo(f"kvstore-ctl: {reason}", err=True)
    raise typer.Exit(status)


def _print(*shown: RenderableType) -> None:
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for each in shown:
        console.print(each)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


if __name__ == "__main__":
    main()
