"""The commands of kvstore-ctl for credentials: of this user, and new tokens."""

import secrets
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from kvstore_ctl.console import EXIT_USAGE, AsJson, RuntimeDirOption, connected, show_json

TOKEN_BYTES = 32
# Identifies a leaked token, for people and for scanners of secrets.
TOKEN_PREFIX = "kvs_"  # noqa: S105  # how tokens begin
FILE_MODE = 0o600

app = typer.Typer(invoke_without_command=True)


@app.callback()
def token(
    context: typer.Context, *, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False
) -> None:
    """Prints a credential of this user, for clients that cannot attach, such as grpcurl.

    Send it with each call over the unix socket as the header "authorization: Bearer CREDENTIAL".
    It is valid until a server begins with an empty cache: at each start without a holder, else at
    a clean start only. For callers on other hosts use token new.
    """
    if context.invoked_subcommand is not None:
        return
    with connected(runtime_dir, here=True) as admin:
        credential = admin.credential
    if as_json:
        show_json({"credential": credential})
    else:
        typer.echo(credential)


@app.command()
def new(
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="New file for the token, with mode 0600. It must not exist."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes a token, prints it once, and prints the lines for the tenants file on stderr.

    Needs no store, and no store keeps the token: the tenants file has its digest.
    """
    made = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    digest = sha256(made.encode()).hexdigest()
    if out is not None:
        _write(out, made)
    if as_json:
        show_json({"token_sha256": digest} | ({"token": made} if out is None else {}))
        return
    if out is None:
        typer.echo(made)
    typer.echo("In the tenants file, in the table of the token's tenant:", err=True)
    typer.echo(f'token_sha256 = ["{digest}"]', err=True)


def _write(path: Path, made: str) -> None:
    try:
        path.touch(FILE_MODE, exist_ok=False)
        path.write_text(made + "\n", encoding="ascii")
    except OSError as error:
        typer.echo(f"kvstore-ctl: {path}: {error.strerror}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
