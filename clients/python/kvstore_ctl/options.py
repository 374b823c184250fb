"""kvstore-ctl's options of which store it is, which stand before the command."""

import os
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kvstore_client.remote import RemoteStore

TOKEN_VARIABLE = "KVSTORE_TOKEN"  # noqa: S105  # the variable's name

Address = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="KVSTORE_ADDRESS",
        help="A store's TCP address. Default: the store of this host, by its sockets.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="KVSTORE_TOKEN_FILE",
        help="File with the token that says who calls. Default: $KVSTORE_TOKEN.",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="KVSTORE_TLS_CA",
        help="Who signs the store's certificate, in PEM. Default: the public authorities.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(envvar="KVSTORE_CLIENT_CERT", help="A certificate that says who calls, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="KVSTORE_CLIENT_KEY", help="The key of --tls-cert.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        metavar="",
        help="Without TLS: who sees the network reads the token.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--runtime-dir", help="The same as --runtime-dir after the command."),
]


class RemoteOptions(NamedTuple):
    """What stood before the command; ``typed`` are the names of those on the command line."""

    address: str
    token_file: Path | None
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure: bool
    runtime_dir: Path | None
    typed: frozenset[str]


# Of the command that runs: what it calls to connect is not told what stood before it.
_chosen: ContextVar[RemoteOptions | None] = ContextVar("_chosen", default=None)


def choose(context: typer.Context, **options: Any) -> None:  # noqa: ANN401  # each option's own
    """Keeps what stands before the command."""
    typed = frozenset(name for name in options if _is_typed(context, name))
    _chosen.set(RemoteOptions(**options, typed=typed))


def prefer_typed(context: typer.Context, runtime_dir: Path | None) -> Path | None:
    """Returns the folder that was typed, after the command or before it, else the one given.

    What was typed wins over an address of the environment.
    """
    chosen = _chosen.get()
    if chosen is None:
        return runtime_dir
    after = _is_typed(context, "runtime_dir")
    if chosen.address and (after or "runtime_dir" in chosen.typed):
        if "address" in chosen.typed:
            raise typer.BadParameter("--address is another store: leave one of the two out")
        _chosen.set(None)
    return runtime_dir if after else chosen.runtime_dir or runtime_dir


def remote_of() -> RemoteStore | None:
    """Returns the store that the command is to reach over TCP; None for this host's.

    Raises ``ValueError`` for options that do not go together.
    """
    options = _chosen.get()
    if options is None:
        return None
    if not options.address:
        # What the environment says is for the time when there is an address.
        if useless := options.typed & {"token_file", "tls_ca", "tls_cert", "tls_key", "insecure"}:
            msg = f"--{min(useless).replace('_', '-')} is for --address HOST:PORT"
            raise ValueError(msg)
        return None
    return RemoteStore(
        address=options.address,
        token=_token(options.token_file),
        tls_ca=options.tls_ca,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        insecure=options.insecure,
    )


def require_here() -> None:
    """Leave what the environment says of another store; raise ``ValueError`` for what was typed."""
    options = _chosen.get()
    typed = set() if options is None else options.typed - {"runtime_dir"}
    if typed:
        msg = f"--{min(typed).replace('_', '-')}: this is of this host's store alone"
        raise ValueError(msg)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        msg = f"--token-file {path}: {error}"
        raise ValueError(msg) from None
