"""The commands of kvstore-ctl about the remote tier: its state, and removals for all hosts."""

from typing import Annotated

import typer

from kvstore_ctl.console import (
    EXIT_REFUSED,
    AsJson,
    RuntimeDirOption,
    confirm,
    connected,
    show,
    show_json,
)
from kvstore_ctl.message_json import plain
from kvstore_ctl.remote_tables import remote_table
from kvstore_ctl.terminal_text import counted, removed
from kvstore_ctl.typed_values import namespace_of, title_of

app = typer.Typer(invoke_without_command=True)


@app.callback()
def remote(
    context: typer.Context, *, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False
) -> None:
    """Shows the remote tier that hosts share, or removes pages from it for all of them."""
    if context.invoked_subcommand is not None:
        return
    with connected(runtime_dir) as admin:
        stats = admin.stats()
    if not stats.HasField("remote"):
        typer.echo("kvstore-ctl: the store has no remote tier: see --remote-url", err=True)
        raise typer.Exit(EXIT_REFUSED)
    if as_json:
        show_json(plain(stats.remote))
    else:
        show(remote_table(stats.remote))


@app.command()
def forget(
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="Beginning of the namespace's id or name.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Removes all pages of a namespace, here and for all hosts that share it; asks first.

    The namespace stays open, and its workers compute again. The exit status is 1 if the engine did
    not confirm it in time. This host then repeats it until the engine does, also after a restart.
    """
    with connected(runtime_dir) as admin:
        chosen = namespace_of(admin.namespaces(), namespace)
        title = title_of(chosen)
        if not yes:
            pages = counted(chosen.cached_page_count, "page")
            confirm(f"Remove all pages of {title} on every host that shares them ({pages} here)?")
        answer = admin.evict_prefix(chosen.namespace_id, [])
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex()} | plain(answer))
    else:
        typer.echo(f"{title}: {removed(answer.evicted_page_count, answer.detached_page_count)}")
    if answer.unsettled:
        typer.echo(
            "kvstore-ctl: the engine has not confirmed it yet, so other hosts may still find the "
            "pages: kvstore-ctl remote shows when it has",
            err=True,
        )
        raise typer.Exit(EXIT_REFUSED)
