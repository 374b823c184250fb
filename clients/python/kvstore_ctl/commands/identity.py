"""kvstore-ctl identity: what makes namespaces the same, and what sets two apart."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated

import typer

from kvstore.v1 import store_pb2, types_pb2
from kvstore_ctl import tables
from kvstore_ctl.console import AsJson, RuntimeDirOption, Wide, connected, show, show_json
from kvstore_ctl.values import namespaces_of, title_of

SALT = "salt"
# What each factor is made of, where that is known: what to look at when it differs.
MEANINGS: Mapping[str, str] = {
    "tenant": "another user, token or certificate: docs/tenants.md",
    "model": "other weights or another configuration, dtype or quantization: compare the"
    " digests in the workers' logs; for vLLM docs/vllm-identity.md has the list",
    "adapter": "another LoRA adapter, or one of them has none",
    "ranks": "another tensor-parallel size",
    "page tokens": "another page size",
    "page bytes": "another page size, dtype, or number of layers or heads",
    "content": "another shape or dtype of a page",
    SALT: "all else is equal: a salt keeps them apart, such as cache_salt of a request, or"
    " the salt that a worker was started with",
}


def factors_of(namespace: store_pb2.NamespaceInfo) -> dict[str, str]:
    """Returns what a namespace is known by, as far as the store tells; a salt it never does."""
    identity, layout = namespace.identity, namespace.layout
    return {
        "tenant": namespace.tenant,
        "model": identity.model_digest.hex(),
        "adapter": identity.adapter_digest.hex(),
        "ranks": str(layout.tensor_parallel_size or 1),
        "page tokens": str(layout.page_tokens),
        "page bytes": str(layout.page_bytes),
        "content": _content(layout),
    }


def differing(one: store_pb2.NamespaceInfo, other: store_pb2.NamespaceInfo) -> list[str]:
    """Returns the factors that set two namespaces apart: at least one, the salt if no other.

    Where others differ the salt may differ too: nobody is told.
    """
    mine, theirs = factors_of(one), factors_of(other)
    return [name for name, value in mine.items() if theirs[name] != value] or [SALT]


def namesakes(
    namespaces: Sequence[store_pb2.NamespaceInfo],
) -> list[tuple[store_pb2.NamespaceInfo, store_pb2.NamespaceInfo, list[str]]]:
    """Returns pairs of one tenant and name that share nothing, with what sets them apart.

    Each with the first of its name that differs so; those that a salt alone keeps apart
    are meant to be, and so are adapters: they are left out.
    """
    found = []
    by_name: dict[tuple[str, str], list[store_pb2.NamespaceInfo]] = {}
    for each in namespaces:
        if each.identity.display_name:
            by_name.setdefault((each.tenant, each.identity.display_name), []).append(each)
    for same in by_name.values():
        seen = set()
        for one, other in combinations(_first_of_each(same), 2):
            factors = differing(one, other)
            if set(factors) <= {SALT, "adapter"} or tuple(factors) in seen:
                continue
            seen.add(tuple(factors))
            found.append((one, other, factors))
    return found


def _first_of_each(same: list[store_pb2.NamespaceInfo]) -> list[store_pb2.NamespaceInfo]:
    """Returns one namespace for each set of known factors."""
    kinds = {tuple(factors_of(each).values()): each for each in reversed(same)}
    return list(kinds.values())


def identity(
    namespace: Annotated[
        list[str] | None,
        typer.Argument(help="How the namespaces' ids or names begin. Default: all."),
    ] = None,
    *,
    wide: Wide = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows what each namespace is known by, and what sets namespaces apart.

    Two servers hit each other's pages only where all of it is equal. The salt is a secret
    that the store tells nobody; where nothing else differs, it does.
    """
    with connected(runtime_dir) as admin:
        listed = admin.namespaces()
        chosen = {
            each.namespace_id: each
            for named in namespace or [""]
            for each in namespaces_of(listed, named)
        }
    found = list(chosen.values())
    kinds = _first_of_each(found)
    pairs = list(combinations(found if len(found) <= FEW else kinds[:FEW], 2))
    if as_json:
        show_json(
            {
                "namespaces": [
                    {"namespace_id": each.namespace_id.hex(), "name": each.identity.display_name}
                    | {"factors": factors_of(each)}
                    for each in found
                ],
                "differences": [
                    {"of": [one.namespace_id.hex(), other.namespace_id.hex()]}
                    | {"factors": differing(one, other)}
                    for one, other in pairs
                ],
            }
        )
        return
    rows = (
        (title_of(each), *(value if wide else _short(value) for value in factors_of(each).values()))
        for each in found
    )
    columns = ("namespace", *list(MEANINGS)[:-1])
    first = ("namespace", "model", "page tokens", "page bytes", "content")
    show(tables.plain_table("identities", columns, rows, first=first, wide=wide))
    for one, other in pairs:
        for factor in differing(one, other):
            typer.echo(f"{title_of(one)} and {title_of(other)}: {factor}: {MEANINGS[factor]}")


# Of more namespaces not each pair is worth a line.
FEW = 6
# Numbers are shorter.
DIGEST = re.compile(r"[0-9a-f]{16,}")


def _short(factor: str) -> str:
    """Returns a factor with the beginning of each digest in it."""
    return DIGEST.sub(lambda found: found[0][: tables.SHORT_ID], factor)


def _content(layout: types_pb2.PageLayout) -> str:
    if layout.HasField("opaque"):
        return f"opaque {layout.opaque.fingerprint.hex()}"
    paged = layout.paged
    return (
        f"{paged.layer_count} layers, {paged.kv_head_count} heads of {paged.head_dim},"
        f" {paged.dtype}, {paged.kv_factor or 2} to a token"
    )
