"""kvstore-ctl identity: the identities of namespaces, and their differences."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated

import typer

from kvstore.v1 import store_pb2, types_pb2
from kvstore_ctl import store_tables
from kvstore_ctl.console import AsJson, RuntimeDirOption, Wide, connected, show, show_json
from kvstore_ctl.typed_values import namespaces_of, title_of

SALT = "salt"
# The meaning of each factor: what to check if it differs.
MEANINGS: Mapping[str, str] = {
    "tenant": "another user, token or certificate: docs/tenants.md",
    "model": "other weights or another configuration, dtype or quantization: compare the"
    " digests in the workers' logs; for vLLM docs/vllm-identity.md has the list",
    "adapter": "another LoRA adapter, or none in one of them",
    "ranks": "another tensor-parallel size",
    "page tokens": "another page size",
    "page bytes": "another page size, dtype, or number of layers or heads",
    "content": "another shape or dtype of a page",
    SALT: "everything else is equal, so the salts differ, such as cache_salt of a request or the"
    " salt of a worker",
}


def factors_of(namespace: store_pb2.NamespaceInfo) -> dict[str, str]:
    """Returns the factors of a namespace's identity, without the salt, which the store hides."""
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
    """Returns the factors in which two namespaces differ: the salt if no other differs.

    If others differ, the salt may differ too, which is not visible.
    """
    mine, theirs = factors_of(one), factors_of(other)
    return [name for name, value in mine.items() if theirs[name] != value] or [SALT]


def namesakes(
    namespaces: Sequence[store_pb2.NamespaceInfo],
) -> list[tuple[store_pb2.NamespaceInfo, store_pb2.NamespaceInfo, list[str]]]:
    """Returns pairs of one tenant and name that share no pages, with the differing factors.

    Returns one pair for each name and set of factors. Leaves out pairs that differ only by salt
    or adapter, because that is intended.
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
        typer.Argument(help="Beginnings of the namespaces' ids or names. Default: all."),
    ] = None,
    *,
    wide: Wide = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the identity of each namespace, and the differences between namespaces.

    Two servers hit each other's pages only if all factors are equal. The salt is a secret that
    the store does not show. If nothing else differs, the salt does.
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
    show(store_tables.plain_table("identities", columns, rows, first=first, wide=wide))
    for one, other in pairs:
        for factor in differing(one, other):
            typer.echo(f"{title_of(one)} and {title_of(other)}: {factor}: {MEANINGS[factor]}")


# With more namespaces, the output does not compare each pair.
FEW = 6
# Longer than any number among the factors.
DIGEST = re.compile(r"[0-9a-f]{16,}")


def _short(factor: str) -> str:
    """Returns a factor with the beginning of each digest in it."""
    return DIGEST.sub(lambda found: found[0][: store_tables.SHORT_ID], factor)


def _content(layout: types_pb2.PageLayout) -> str:
    if layout.HasField("opaque"):
        return f"opaque {layout.opaque.fingerprint.hex()}"
    paged = layout.paged
    return (
        f"{paged.layer_count} layers, {paged.kv_head_count} heads of {paged.head_dim},"
        f" {paged.dtype}, {paged.kv_factor or 2} to a token"
    )
