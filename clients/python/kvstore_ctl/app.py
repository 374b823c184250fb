"""kvstore-ctl: shows the state of a running store, pins prefixes and removes them.

Exit status: 0 success; 1 the store refused, or the answer to a question was no;
2 the command line is wrong; 3 the store cannot be reached; 130 Ctrl-C ended it.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from kvstore import __version__
from kvstore_ctl import store_options, store_tables
from kvstore_ctl.bench.command import bench
from kvstore_ctl.bench.replay import replay
from kvstore_ctl.commands import namespaces, pins, remote_tier, token
from kvstore_ctl.commands.events import events
from kvstore_ctl.commands.health import health
from kvstore_ctl.commands.leases import leases
from kvstore_ctl.commands.namespace_identity import identity
from kvstore_ctl.commands.savings import savings
from kvstore_ctl.commands.tree import tree
from kvstore_ctl.console import AsJson, RuntimeDirOption, Wide, connected, show, show_json
from kvstore_ctl.doctor.command import doctor
from kvstore_ctl.message_json import plain
from kvstore_ctl.page.command import page
from kvstore_ctl.remote_tables import remote_table
from kvstore_ctl.top.command import top

# The groups of commands in --help.
LOOK, KEEP, OPERATE = "Look", "Keep, and remove", "Operate"

app = typer.Typer(name="kvstore-ctl", help=__doc__, no_args_is_help=True)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvstore-ctl {__version__}")
        raise typer.Exit


@app.callback(help=__doc__)
def _options(
    context: typer.Context,
    *,
    runtime_dir: store_options.Folder = None,
    address: store_options.Address = "",
    token_file: store_options.TokenFile = None,
    tls_ca: store_options.TlsCa = None,
    tls_cert: store_options.TlsCert = None,
    tls_key: store_options.TlsKey = None,
    insecure: store_options.Insecure = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    store_options.choose(
        context,
        runtime_dir=runtime_dir,
        address=address,
        token_file=token_file,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
    )


def stats(
    *, wide: Wide = False, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False
) -> None:
    """Shows one consistent snapshot: counters, tenants, arenas, namespaces and leases."""
    with connected(runtime_dir) as admin:
        snapshot = admin.stats()
    if as_json:
        show_json(plain(snapshot))
        return
    show(
        store_tables.totals_table(snapshot),
        store_tables.tier_3_table(snapshot.tier_3),
        *([remote_table(snapshot.remote)] if snapshot.HasField("remote") else []),
        store_tables.tenants_table(snapshot.tenants, wide=wide),
        store_tables.arenas_table(snapshot.arenas, wide=wide),
        store_tables.namespaces_table(snapshot.namespaces, wide=wide),
        store_tables.leases_table(snapshot.leases, wide=wide),
    )


app.add_typer(namespaces.app, name="namespaces", rich_help_panel=KEEP)
app.add_typer(remote_tier.app, name="remote", rich_help_panel=KEEP)
app.add_typer(token.app, name="token", rich_help_panel=OPERATE)
PANELS: Mapping[str, tuple[Callable[..., None], ...]] = {
    LOOK: (
        top,
        page,
        tree,
        stats,
        leases,
        identity,
        events,
        pins.pins,
        pins.peek,
        savings,
        doctor,
        health,
    ),
    KEEP: (pins.pin, pins.unpin, pins.prefetch, pins.evict),
    OPERATE: (bench, replay),
}
for panel, listed in PANELS.items():
    for each in listed:
        app.command(rich_help_panel=panel)(each)


def main() -> None:
    """Runs the command line and ends the process with its exit status."""
    app()
