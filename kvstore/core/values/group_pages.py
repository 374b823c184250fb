"""Pages of KV cache groups: a path has one child of a single page for each, marked by its tokens.

Group 0 is the path of a sequence. A page of group 1 and up belongs to a page of the path, and
is a child at that page's end. Its tokens are a marker, which no sequence has: the store refuses
pages that begin with the largest token id.
"""

from functools import lru_cache

from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import InvalidField

MARK = b"\xff" * TOKEN_BYTES
MAX_GROUP = (1 << 32) - 1
# A page of one token has no room for the group.
LEAST_PAGE_TOKENS = 2


@lru_cache(maxsize=256)
def group_marker(group: int, width: int) -> bytes:
    """Returns the tokens of a group's pages, which take ``width`` bytes.

    Raises InvalidField unless a page of this width can name the group.
    """
    if not 1 <= group <= MAX_GROUP:
        raise InvalidField(field="group", value=group, why="not from 1 to 2**32 - 1")
    if width < LEAST_PAGE_TOKENS * TOKEN_BYTES:
        raise InvalidField(field="groups", why="pages of one token have no groups")
    marker = MARK + group.to_bytes(TOKEN_BYTES, "little")
    return marker + b"\xff" * (width - len(marker))


def hidden_key(number: int) -> bytes:
    """Returns a key that no page has: neither one of a path, nor one of a group.

    Keys of different numbers differ, and none begins with another. It names group 0.
    """
    return MARK + bytes(TOKEN_BYTES) + number.to_bytes(8, "little")


def is_group_page(tokens: bytes) -> bool:
    """Returns True if ``tokens`` are those of a page of a group, not of a path."""
    return tokens.startswith(MARK)


def group_of(tokens: bytes) -> int:
    """Returns the group of a page whose tokens are a marker."""
    return int.from_bytes(tokens[TOKEN_BYTES : 2 * TOKEN_BYTES], "little")


def path_bytes(tokens: bytes, width: int) -> int:
    """Returns the bytes of the pages of ``tokens`` before the first that begins as a marker does.

    A page takes ``width`` bytes. Costs a copy of one byte for each page.
    """
    if b"\xff" in tokens[::width]:
        for start in range(0, len(tokens), width):
            if tokens.startswith(MARK, start):
                return start
    return len(tokens)


def require_sequence(tokens: bytes, width: int) -> None:
    """Raises InvalidField if a page of ``tokens``, of ``width`` bytes, begins as a marker does."""
    if path_bytes(tokens, width) < len(tokens):
        raise InvalidField(field="tokens", value=MAX_GROUP, why="first in a page")
