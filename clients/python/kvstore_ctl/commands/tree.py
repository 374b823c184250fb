"""kvstore-ctl tree: the radix trees of the namespaces."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.text import Text
from rich.tree import Tree

from kvstore.v1 import store_pb2
from kvstore_client.values.packed_tokens import unpack_tokens
from kvstore_ctl.console import AsJson, RuntimeDirOption, connected, show, show_json
from kvstore_ctl.message_json import plain
from kvstore_ctl.terminal_text import counted, printable
from kvstore_ctl.tokenizer import decoder_of
from kvstore_ctl.typed_values import namespaces_of


def _token_ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


class TreeView(NamedTuple):
    """The part of a tree that is shown.

    This is ``depth`` levels below the root, and of each node the ``width`` children with most
    hits; None means all. ``text`` decodes a run's first token ids.
    """

    depth: int | None = None
    width: int | None = None
    text: Callable[[Sequence[int]], str] = _token_ids


WHOLE = TreeView()


def prefix_tree(
    namespace: store_pb2.NamespaceInfo,
    prefixes: Iterable[store_pb2.PrefixInfo],
    view: TreeView = WHOLE,
) -> Tree:
    """Returns the radix tree of a namespace.

    A node is shown at the root if its parent is missing, because it was removed meanwhile.
    """
    name = printable(namespace.identity.display_name) or namespace.namespace_id.hex()
    pages = counted(namespace.cached_page_count, "page")
    root = Tree(Text(f"{name}: {pages} of {counted(namespace.layout.page_tokens, 'token')}"))
    listed = sorted(prefixes, key=lambda each: (each.start_page, each.node_id))
    known = {each.node_id for each in listed}
    children: dict[int, list[store_pb2.PrefixInfo]] = {}
    for each in listed:
        parent = each.parent_node_id if each.parent_node_id in known else 0
        children.setdefault(parent, []).append(each)
    through = _through(listed)
    # A stack instead of recursion, because a long conversation is a deep tree.
    waiting = [(root, 0, 1)]
    while waiting:
        branch, node_id, level = waiting.pop()
        below = children.get(node_id, [])
        if view.depth is not None and level > view.depth:
            _more(branch, below, children)
            continue
        kept = _kept(below, view.width)
        waiting += [
            (branch.add(_label(each, namespace, view, through)), each.node_id, level + 1)
            for each in kept
        ]
        shown = {each.node_id for each in kept}
        _more(branch, [each for each in below if each.node_id not in shown], children)
    return root


def _through(listed: list[store_pb2.PrefixInfo]) -> dict[int, int]:
    """Returns for each node the matches that ended in it or below it. Parents come first."""
    through = {each.node_id: each.hit_count for each in listed}
    for each in reversed(listed):
        if each.parent_node_id in through:
            through[each.parent_node_id] += through[each.node_id]
    return through


def _kept(nodes: list[store_pb2.PrefixInfo], width: int | None) -> list[store_pb2.PrefixInfo]:
    """Returns the nodes with most hits, and among equals most pages, in their order."""
    if width is None or len(nodes) <= width:
        return nodes
    best = sorted(nodes, key=lambda each: (each.hit_count, each.page_count), reverse=True)[:width]
    kept = {each.node_id for each in best}
    return [each for each in nodes if each.node_id in kept]


def _more(
    branch: Tree,
    nodes: list[store_pb2.PrefixInfo],
    children: dict[int, list[store_pb2.PrefixInfo]],
) -> None:
    """Adds the counts of the nodes that are not shown, and of all nodes below them."""
    count = pages = 0
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        count, pages = count + 1, pages + node.page_count
        waiting += children.get(node.node_id, [])
    if count:
        branch.add(Text(f"... {counted(count, 'more run')}, {counted(pages, 'page')}", style="dim"))


def _label(
    prefix: store_pb2.PrefixInfo,
    namespace: store_pb2.NamespaceInfo,
    view: TreeView,
    through: dict[int, int],
) -> Text:
    last_page = prefix.start_page + prefix.page_count - 1
    label = f"pages {prefix.start_page}-{last_page}"
    if prefix.token_count < prefix.page_count * namespace.layout.page_tokens:
        label += f" ({prefix.token_count} token{'s' * (prefix.token_count > 1)})"
    label += f"  pins {prefix.pin_count}  hits {prefix.hit_count}"
    if prefix.child_count:
        label += f"  through {through[prefix.node_id]}"
    ids = unpack_tokens(prefix.tokens)
    if ids[:1] == [GROUP_MARK]:
        label += f"  group {ids[1]}" if len(ids) > 1 else "  a group's page"
    elif ids:
        label += f"  {view.text(ids)} ..."
    return Text(label)


# The first token id of a page of a KV cache group; the next one is the group.
GROUP_MARK = (1 << 32) - 1
# About one line of text.
DECODED_TOKENS = 24


def tree(  # each is an option
    *,
    namespace: Annotated[
        str, typer.Option(help="Only namespaces whose id or name begins with this.")
    ] = "",
    tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of tokens to show of each run: they are content of prompts."
            f" Default: 0, or {DECODED_TOKENS} with --tokenizer.",
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
        int | None, typer.Option(min=1, help="Largest number of levels of each tree.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of children of each run, those with most hits."),
    ] = None,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows each namespace's radix tree: pages, pins and hits of every run.

    The runs beyond --depth and --width are only counted. JSON has all of them.
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
