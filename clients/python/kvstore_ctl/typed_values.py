"""Values of what an operator types. Each function raises ``ValueError`` for wrong input."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client.values.packed_tokens import pack_tokens

STDIN = "-"
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
WORDS = re.compile(r"[^\s,]+")
# The most characters of a quoted word.
SHORT_WORD = 20
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
SHORT_ID = 8


def span_of(text: str) -> float:
    """Returns a span of time in seconds: a number, with the unit s, m, h or d, by default s."""
    found = SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no span of time: try 90, 90s, 10m, 12h or 7d")
    return float(found[1]) * SECONDS[found[2]]


def tokens_of(source: str, *, packed: bool) -> bytes:
    """Returns the packed token ids of a file, or of stdin for ``-``.

    The source has decimal numbers, as a JSON list or with spaces, commas or line ends between
    them. A ``packed`` source has little-endian uint32.
    """
    try:
        content = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
        return pack_tokens(content if packed else _listed(content.decode()))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"tokens from {source}: {error}") from error


# The store knows a namespace on the disk only after a worker has opened it.
NONE_OPEN = "no namespaces: no worker has opened one since the store's start; tier 3 may have pages"


def namespace_of(
    namespaces: Sequence[store_pb2.NamespaceInfo], named: str
) -> store_pb2.NamespaceInfo:
    """Returns the only namespace with this id or name, or else with this beginning of either.

    Without a name it returns the only namespace of the store.
    """
    whole = [each for each in namespaces if named and named in _names(each)]
    begun = namespaces_of(namespaces, named)
    for found in (whole, begun):
        if len(found) == 1:
            return found[0]
    if not begun:
        msg = NONE_OPEN
    else:
        which = f" begin with {named!r}" if named else ""
        msg = f"{len(begun)} namespaces{which}: choose one with --namespace, of {_titles(begun)}"
    raise ValueError(msg)


def namespaces_of(
    namespaces: Sequence[store_pb2.NamespaceInfo], named: str
) -> list[store_pb2.NamespaceInfo]:
    """Returns the namespaces whose id or name begins with ``named``; all of them without it."""
    begun = [n for n in namespaces if any(each.startswith(named) for each in _names(n))]
    if named and not begun:
        known = _titles(namespaces)
        msg = f"no namespace's id or name begins with {named!r}; known are: {known}"
        raise ValueError(msg if namespaces else NONE_OPEN)
    return begun


def leases_of(leases: Sequence[lease_pb2.LeaseInfo], named: str) -> list[lease_pb2.LeaseInfo]:
    """Returns the leases whose id or name begins with ``named``, at least one."""
    begun = [each for each in leases if each.lease_id.hex().startswith(named)]
    begun = begun or [each for each in leases if each.display_name.startswith(named)]
    if named and not begun:
        known = ", ".join(f"{each.display_name} ({_short(each.lease_id)})" for each in leases)
        raise ValueError(
            f"no lease's id or name begins with {named!r}; known are: {known or 'none'}"
        )
    return begun


def title_of(namespace: store_pb2.NamespaceInfo) -> str:
    """Returns a namespace's display name with the beginning of its id."""
    short = _short(namespace.namespace_id)
    name = namespace.identity.display_name
    return f"{name} ({short})" if name else short


def _short(identifier: bytes) -> str:
    return identifier.hex()[:SHORT_ID]


def _titles(namespaces: Sequence[store_pb2.NamespaceInfo]) -> str:
    return ", ".join(title_of(each) for each in namespaces)


def _names(namespace: store_pb2.NamespaceInfo) -> tuple[str, str]:
    return namespace.namespace_id.hex(), namespace.identity.display_name


def _listed(text: str) -> list[int]:
    if text.lstrip().startswith("["):
        listed: list[int] = json.loads(text)
        return listed
    return [_token_id(word, number) for number, word in enumerate(WORDS.findall(text), start=1)]


def _token_id(word: str, number: int) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(
            f"word {number} is {_shortened(word)!r}: give token ids in decimal, as a JSON list or"
            " with spaces between them, or with --packed little-endian uint32"
        ) from None


def _shortened(word: str) -> str:
    return word if len(word) <= SHORT_WORD else f"{word[: SHORT_WORD - 3]}..."
