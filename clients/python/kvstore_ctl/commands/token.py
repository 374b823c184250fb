"""The commands of kvstore-ctl that give credentials: of this user, and new tokens."""

import secrets
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from kvstore_ctl.console import EXIT_USAGE, AsJson, RuntimeDirOption, connected, show_json

TOKEN_BYTES = 32
# Tells what leaked where one is found, also to scanners for secrets.
TOKEN_PREFIX = "kvs_"  # noqa: S105  # how tokens begin
FILE_MODE = 0o600

app = typer.Typer(invoke_without_command=True)


@app.callback()
def token(
    context: typer.Context, *, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False
) -> None:
    """Print a credential of this user, for clients that cannot attach, such as grpcurl.

    It goes with each call over the unix socket as the header "authorization: Bearer
    CREDENTIAL", and holds until the store restarts. For callers on other hosts: token new.
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
        typer.Option(help="A file, which must not be there, to put the token in, mode 0600."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, print it once, and say on stderr what to write into the tenants file.

    No store is asked, and none keeps a token: the tenants file has its digest.
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
