"""The commands of kvstore-ctl that pin prefixes, load them into memory, and remove them."""

from typing import Annotated

import typer

from kvstore.v1 import store_pb2
from kvstore_client.namespace import PREFETCH
from kvstore_client.values.packed_tokens import TOKEN_BYTES
from kvstore_ctl import store_tables
from kvstore_ctl.console import (
    EXIT_REFUSED,
    AsJson,
    RuntimeDirOption,
    confirm,
    connected,
    show,
    show_json,
    warn_unsettled,
)
from kvstore_ctl.message_json import plain
from kvstore_ctl.terminal_text import counted, removed
from kvstore_ctl.typed_values import STDIN, namespace_of, span_of, title_of, tokens_of

TOKENS_HELP = "File of token ids in decimal, as a JSON list or separated by spaces; - for stdin."

Name = Annotated[str, typer.Argument(metavar="NAME", help="The named pin's name in its namespace.")]
NamespaceOption = Annotated[
    str, typer.Option(help="Beginning of the namespace's id or name. Default: the only one.")
]
PackedOption = Annotated[
    bool,
    typer.Option(
        "--packed", metavar="", help="The token ids are little-endian uint32, not decimal."
    ),
]


def peek(
    *,
    tokens: Annotated[str, typer.Option(metavar="FILE", help=TOKENS_HELP)],
    packed: PackedOption = False,
    namespace: NamespaceOption = "",
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows how much of a prompt is cached, without any effect on the cache."""
    with connected(runtime_dir) as admin:
        packed_tokens = tokens_of(tokens, packed=packed)
        chosen = namespace_of(admin.namespaces(), namespace)
        answer = admin.peek_prefix(chosen.namespace_id, packed_tokens)
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex()} | plain(answer))
    else:
        cached = answer.matched_token_count + answer.source_token_count
        asked = len(packed_tokens) // TOKEN_BYTES
        typer.echo(f"{cached} of {counted(asked, 'token')} would be reused in {title_of(chosen)}")
        if kept := answer.tier_3_token_count:
            more = ": a match may load those that memory does not have" if kept > cached else ""
            typer.echo(f"tier 3 has the first {kept} of them{more}")
        if answer.HasField("in_flight"):
            found = answer.in_flight
            typer.echo(
                f"a worker is computing them through token {found.token_count}; "
                f"it last inserted pages {found.idle_ms} ms ago"
            )


def prefetch(
    *,
    tokens: Annotated[str, typer.Option(metavar="FILE", help=TOKENS_HELP)],
    packed: PackedOption = False,
    namespace: NamespaceOption = "",
    wait: Annotated[
        str, typer.Option(help="Wait for the load so long at most, such as 90s. Default: not.")
    ] = "",
    evict: Annotated[
        bool,
        typer.Option("--evict", metavar="", help="Evict pages that nobody used for a minute."),
    ] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Begins to load what tier 3 has of a prompt into free memory, and does not wait for it.

    It pins nothing, and evicts nothing without --evict. Repeat it to see its progress, or --wait.
    """
    with connected(runtime_dir) as admin:
        packed_tokens = tokens_of(tokens, packed=packed)
        chosen = namespace_of(admin.namespaces(), namespace)
        if wait:
            page_bytes = chosen.layout.page_tokens * TOKEN_BYTES
            whole = packed_tokens[: len(packed_tokens) // page_bytes * page_bytes]
            admin.fetch_prefix(chosen.namespace_id, whole, seconds=span_of(wait), may_evict=evict)
        answer = admin.prefetch_prefix(chosen.namespace_id, packed_tokens, may_evict=evict)
        has_tier_3 = PREFETCH in admin.capabilities().features
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex()} | plain(answer))
        return
    asked = len(packed_tokens) // TOKEN_BYTES
    loading, declined = answer.loading_token_count, answer.declined_token_count
    typer.echo(
        f"{answer.memory_token_count} of {counted(asked, 'token')} are in memory"
        f" in {title_of(chosen)}, {loading} are being loaded"
    )
    if declined:
        typer.echo(
            f"{declined} in tier 3 are not loaded: no memory is free, or enough is being loaded;"
            " try again later, or --evict"
        )
    if not has_tier_3:
        typer.echo("this store has no tier 3, so there is nothing to load from")


def pin(
    name: Name,
    *,
    tokens: Annotated[str, typer.Option(metavar="FILE", help=TOKENS_HELP)],
    packed: PackedOption = False,
    namespace: NamespaceOption = "",
    ttl: Annotated[
        str, typer.Option(help="Time to live, such as 90s, 10m, 12h, 7d. Default: no end.")
    ] = "",
    require_all: Annotated[
        bool,
        typer.Option("--require-all", metavar="", help="Fail unless all whole pages are cached."),
    ] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Pins the whole pages of a prefix that are cached now, under a name.

    Repeated with the same tokens, it shows the pinned tokens and restarts the time to live.
    """
    with connected(runtime_dir) as admin:
        packed_tokens = tokens_of(tokens, packed=packed)
        seconds = span_of(ttl) if ttl else None
        chosen = namespace_of(admin.namespaces(), namespace)
        answer = admin.pin_prefix(
            chosen.namespace_id, name, packed_tokens, ttl=seconds, require_all=require_all
        )
    pinned, asked = answer.pinned_token_count, len(packed_tokens) // TOKEN_BYTES
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex(), "name": name} | plain(answer))
    elif pinned:
        are = counted(asked, "token is", "tokens are")
        typer.echo(f"{name}: {pinned} of {are} pinned in {title_of(chosen)}")
    else:
        title = title_of(chosen)
        typer.echo(f"{name}: no pin: no page of {counted(asked, 'token')} is cached in {title}")


def unpin(
    name: Name,
    *,
    namespace: NamespaceOption = "",
    if_exists: Annotated[
        bool,
        typer.Option("--if-exists", metavar="", help="Succeed if there is no such pin."),
    ] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Ends a named pin; its pages stay cached until they are evicted."""
    with connected(runtime_dir) as admin:
        chosen = namespace_of(admin.namespaces(), namespace)
        names = [each.name for each in admin.named_pins(chosen.namespace_id)]
        admin.unpin_prefix(chosen.namespace_id, name)
    if name not in names and not if_exists:
        known = ", ".join(names) or "none"
        typer.echo(
            f"kvstore-ctl: no pin is named {name!r} in {title_of(chosen)}; known are: {known}",
            err=True,
        )
        raise typer.Exit(EXIT_REFUSED)
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex(), "name": name})
    else:
        typer.echo(f"unpinned {name} in {title_of(chosen)}")


def pins(
    *,
    namespace: Annotated[
        str, typer.Option(help="Beginning of the namespace's id or name. Default: all.")
    ] = "",
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the named pins: tokens, age and remaining time of each.

    If the store has a remote tier, `shared` are the tokens that it has for other hosts.
    """
    with connected(runtime_dir) as admin:
        namespaces = admin.namespaces()
        chosen = namespace_of(namespaces, namespace).namespace_id if namespace else b""
        listed = admin.named_pins(chosen)
        has_remote_tier = admin.stats().HasField("remote")
    if as_json:
        show_json([plain(each) for each in listed])
    else:
        titles = {each.namespace_id: title_of(each) for each in namespaces}
        show(store_tables.named_pins_table(listed, titles, has_remote_tier=has_remote_tier))


def evict(
    *,
    tokens: Annotated[str, typer.Option(metavar="FILE", help=TOKENS_HELP)] = "",
    packed: PackedOption = False,
    everything: Annotated[
        bool,
        typer.Option("--all", metavar="", help="All pages of the namespace, instead of tokens."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    namespace: NamespaceOption = "",
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Removes every page with a cached prefix's last token, and all pages after it; asks first.

    If the prefix is not cached whole, it removes nothing. Pages in use no longer match, and are
    freed at their last release. Named pins on a removed page end.
    """
    if bool(tokens) == everything:
        raise typer.BadParameter("give one of the two", param_hint="--tokens, --all")
    if tokens == STDIN and not yes:
        raise typer.BadParameter("is required with tokens from stdin", param_hint="--yes")
    with connected(runtime_dir) as admin:
        packed_tokens = b"" if everything else tokens_of(tokens, packed=packed)
        if not (packed_tokens or everything):
            raise ValueError(
                f"no tokens in {tokens}; to remove all pages of a namespace, give --all"
            )
        chosen = namespace_of(admin.namespaces(), namespace)
        if not yes:
            confirm(_question(chosen, packed_tokens))
        answer = admin.evict_prefix(chosen.namespace_id, packed_tokens)
    if as_json:
        show_json({"namespace_id": chosen.namespace_id.hex()} | plain(answer))
    else:
        what = removed(answer.evicted_page_count, answer.detached_page_count)
        typer.echo(f"{title_of(chosen)}: {what}")
    warn_unsettled(unsettled=answer.unsettled)


def _question(namespace: store_pb2.NamespaceInfo, packed_tokens: bytes) -> str:
    title = title_of(namespace)
    if not packed_tokens:
        return f"Remove all of {title}, {counted(namespace.cached_page_count, 'page')}?"
    count = len(packed_tokens) // TOKEN_BYTES
    return f"Remove the end of {counted(count, 'token')} from {title}, and all pages after it?"
