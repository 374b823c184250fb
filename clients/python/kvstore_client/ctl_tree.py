"""kvstore-ctl tree: what is cached, as the radix trees that it stands in."""

from typing import Annotated

import typer

from kvstore.v1 import store_pb2
from kvstore_client.console import AsJson, RuntimeDirOption, connected, show, show_json
from kvstore_client.ctl_tokenizer import decoder_of
from kvstore_client.ctl_values import namespaces_of
from kvstore_client.message_json import plain
from kvstore_client.prefix_tree import TreeView, prefix_tree
from kvstore_client.tokens import unpack_tokens

# As many as a line of text has, about.
DECODED_TOKENS = 24


def tree(  # each is an option
    *,
    namespace: Annotated[
        str, typer.Option(help="Only namespaces whose id or name begins like this.")
    ] = "",
    tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show that many tokens of each run: they are content."
            f" Default: none, and {DECODED_TOKENS} with --tokenizer.",
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Show tokens as text: a tokenizer.json, a folder with one, or"
            " bytes for models whose tokens are bytes.",
        ),
    ] = "",
    depth: Annotated[
        int | None, typer.Option(min=1, help="Only so many levels of each tree.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many continuations of each run, those with most hits."),
    ] = None,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Show each namespace's radix tree: pages, pins and hits of every run.

    What is left out by --depth and --width is counted. JSON has all of it.
    """
    wanted = (DECODED_TOKENS if tokenizer else 0) if tokens is None else tokens
    with connected(runtime_dir) as admin:
        view = TreeView(depth, width)
        if tokenizer:
            view = view._replace(text=decoder_of(tokenizer))
        shown = [
            (each, list(admin.prefixes(each.namespace_id, max_tokens=wanted)))
            for each in namespaces_of(admin.namespaces(), namespace)
        ]
    if not as_json:
        show(*(prefix_tree(each, prefixes, view) for each, prefixes in shown))
        return
    show_json(
        [
            plain(each)
            | {"nodes": [_plain_node(node, view, decoded=bool(tokenizer)) for node in nodes]}
            for each, nodes in shown
        ]
    )


def _plain_node(
    prefix: store_pb2.PrefixInfo, view: TreeView, *, decoded: bool
) -> dict[str, object]:
    ids = unpack_tokens(prefix.tokens)
    text = {"text": view.text(ids)} if decoded else {}
    return plain(prefix) | {"tokens": ids} | text
