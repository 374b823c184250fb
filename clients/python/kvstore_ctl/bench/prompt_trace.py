"""A trace of prompts: lines of JSON, plain or compressed."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kvstore_client.values.packed_tokens import TOKEN_BYTES, pack_tokens
from kvstore_ctl.bench.scratch_namespace import PAGE_TOKENS

# The tokens of one block in the public traces that name blocks by hash_ids (Mooncake).
BLOCK_TOKENS = 512
LINE = 'a line is JSON with "tokens", or with "hash_ids" and "input_length"'

# Errors of a file, its compression, its JSON and its content.
READING_ERRORS = (OSError, EOFError, zlib.error, ValueError, RecursionError, TypeError, KeyError)

Row = TypeVar("Row")


class TracePrompt(NamedTuple):
    """One prompt of a replay.

    ``packed`` has the packed tokens of whole pages. Each page stands for ``page_weight`` tokens
    of the trace, and all pages together for ``token_count``.
    """

    packed: bytes
    page_weight: int
    token_count: int

    @property
    def page_count(self) -> int:
        """The number of whole pages."""
        return len(self.packed) // (PAGE_TOKENS * TOKEN_BYTES)

    def tokens_of(self, pages: int) -> int:
        """Returns the number of tokens of the trace for which the first ``pages`` pages stand."""
        return min(pages * self.page_weight, self.token_count)


def prompts_of(path: Path, count: int | None = None) -> Iterator[TracePrompt]:
    """Yields a trace's prompts, the first ``count`` of them if given.

    A line has ``tokens``, or ``hash_ids`` and ``input_length``, where one page stands for a block
    of 512 tokens. Raises ``ValueError`` as :func:`rows_of` does.
    """
    return rows_of(path, _prompt, LINE, count)


def rows_of(
    path: Path, read: Callable[[object], Row], wanted: str, count: int | None = None
) -> Iterator[Row]:
    """Yields the result of ``read`` for the JSON of each line, or of the first ``count`` lines.

    Skips empty lines. Raises ``ValueError`` if the file cannot be read. For an invalid line it
    raises one with the line's number and ``wanted``, the form of a valid line.
    """
    number = 0
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, start=1):  # for the message
                if count is not None and number > count:
                    return
                if line.strip():
                    yield read(json.loads(line))
    except READING_ERRORS as error:
        if not number:
            raise ValueError(f"{path}: {_unread(error)}") from error
        raise ValueError(f"{path}, line {number}: {_said(error)}; {wanted}") from error


def object_of(row: object) -> dict[str, Any]:
    """Returns a line's JSON object; raises ``TypeError`` for other JSON."""
    if not isinstance(row, dict):
        raise TypeError("it is no JSON object")
    return row


def blocks_of(row: dict[str, Any]) -> tuple[list[int], int]:
    """Returns a prompt's ``hash_ids`` and its ``input_length``.

    Raises ``KeyError`` if one is missing, and ``TypeError`` if it has another type.
    """
    ids, length = row["hash_ids"], row["input_length"]
    if not isinstance(ids, list) or not isinstance(length, int):
        raise TypeError("hash_ids is a list, input_length a number")
    return ids, length


def _unread(error: Exception) -> str:
    """Returns the reason why a file cannot be read, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _said(error: Exception) -> str:
    """Returns what is wrong with a line."""
    what = str(error)
    if isinstance(error, KeyError):
        what = f"{what} is missing"
    elif isinstance(error, json.JSONDecodeError):
        what = f"{error.msg} at character {error.pos + 1}"
    return what or type(error).__name__


def _prompt(row: object) -> TracePrompt:
    row = object_of(row)
    if "hash_ids" in row:
        ids, length = blocks_of(row)
        packed = b"".join(pack_tokens([each]) * PAGE_TOKENS for each in ids)
        return TracePrompt(packed, BLOCK_TOKENS, length)
    if "tokens" not in row:
        raise ValueError('it has neither "tokens" nor "hash_ids"')
    tokens = row["tokens"]
    if not isinstance(tokens, list):
        raise TypeError("tokens is a list")
    packed = pack_tokens(tokens)
    whole = len(packed) // (PAGE_TOKENS * TOKEN_BYTES) * PAGE_TOKENS * TOKEN_BYTES
    return TracePrompt(packed[:whole], PAGE_TOKENS, len(tokens))
