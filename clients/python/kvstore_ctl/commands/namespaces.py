"""The commands of kvstore-ctl about namespaces: listing and deletion."""

from typing import Annotated

import typer

from kvstore_ctl import store_tables
from kvstore_ctl.console import (
    AsJson,
    RuntimeDirOption,
    Wide,
    confirm,
    connected,
    show,
    show_json,
    warn_unsettled,
)
from kvstore_ctl.message_json import plain
from kvstore_ctl.terminal_text import counted, removed
from kvstore_ctl.typed_values import namespace_of, title_of

app = typer.Typer(invoke_without_command=True)


@app.callback()
def namespaces(
    context: typer.Context,
    *,
    wide: Wide = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the namespaces with their pages and pins, or deletes one."""
    if context.invoked_subcommand is not None:
        return
    with connected(runtime_dir) as admin:
        listed = admin.namespaces()
    if as_json:
        show_json([plain(each) for each in listed])
    else:
        show(store_tables.namespaces_table(listed, wide=wide))


@app.command()
def delete(
    namespace: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="Beginning of the namespace's id or name.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Deletes a namespace with all its pages and named pins; asks first.

    Its id is never used again. Workers that have it open get an error at their next call, and
    open a new, empty namespace. Pages in use are freed at their last release.
    """
    with connected(runtime_dir) as admin:
        chosen = namespace_of(admin.namespaces(), namespace)
        title = title_of(chosen)
        if not yes:
            question = f"Delete {title} and its {counted(chosen.cached_page_count, 'page')}?"
            confirm(question)
        answer = admin.delete_namespace(chosen.namespace_id)
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex()} | plain(answer))
    else:
        what = removed(answer.evicted_page_count, answer.detached_page_count)
        typer.echo(f"deleted {title}: {what}")
    warn_unsettled(unsettled=answer.unsettled)
