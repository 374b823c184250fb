"""The options of kvstore-ctl before the command, which choose the store."""

import os
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kvstore_client.remote_store import RemoteStore

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
        help="File with the caller's token. Default: $KVSTORE_TOKEN.",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="KVSTORE_TLS_CA",
        help="Authority of the store's certificate, in PEM. Default: the public authorities.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(envvar="KVSTORE_CLIENT_CERT", help="The caller's certificate, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="KVSTORE_CLIENT_KEY", help="The key of --tls-cert.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        metavar="",
        help="Connect without TLS: the token can be read on the network.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--runtime-dir", help="The same as --runtime-dir after the command."),
]


class RemoteOptions(NamedTuple):
    """The options before the command. ``typed`` names those from the command line."""

    address: str
    token_file: Path | None
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure: bool
    runtime_dir: Path | None
    typed: frozenset[str]


# The options of the running command, for functions that connect and do not get them.
_chosen: ContextVar[RemoteOptions | None] = ContextVar("_chosen", default=None)


def choose(context: typer.Context, **options: Any) -> None:  # noqa: ANN401  # each option's own
    """Stores the options before the command."""
    typed = frozenset(name for name in options if _is_typed(context, name))
    _chosen.set(RemoteOptions(**options, typed=typed))


def prefer_typed(context: typer.Context, runtime_dir: Path | None) -> Path | None:
    """Returns the typed folder, after the command or before it, or else ``runtime_dir``.

    A typed folder has precedence over an address of the environment.
    """
    chosen = _chosen.get()
    if chosen is None:
        return runtime_dir
    after = _is_typed(context, "runtime_dir")
    if chosen.address and (after or "runtime_dir" in chosen.typed):
        if "address" in chosen.typed:
            raise typer.BadParameter("--address names another store: leave one of the two out")
        _chosen.set(None)
    return runtime_dir if after else chosen.runtime_dir or runtime_dir


def remote_of() -> RemoteStore | None:
    """Returns the store that the command has to reach over TCP; None for this host's store.

    Raises ``ValueError`` for options that contradict each other.
    """
    options = _chosen.get()
    if options is None:
        return None
    if not options.address:
        # Options of the environment are ignored without an address, but typed ones are an error.
        if useless := options.typed & {"token_file", "tls_ca", "tls_cert", "tls_key", "insecure"}:
            raise ValueError(f"--{min(useless).replace('_', '-')} is for --address HOST:PORT")
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
    """Raises ``ValueError`` if options of another store were typed; ignores the environment's."""
    options = _chosen.get()
    typed = set() if options is None else options.typed - {"runtime_dir"}
    if typed:
        raise ValueError(
            f"--{min(typed).replace('_', '-')}: this command works only on this host's store"
        )


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"--token-file {path}: {error}") from None
