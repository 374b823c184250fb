"""Token ids as bytes, cut into pages.

A sequence of n tokens is ``4 * n`` bytes, little-endian uint32. Comparing two sequences
is a memcmp, and slicing needs no conversion.
"""

from kvstore.errors import InvalidField

TOKEN_BYTES = 4


def token_count(tokens: bytes) -> int:
    """Returns how many token ids ``tokens`` holds.

    Raises :class:`InvalidField` if the length is not a multiple of four bytes.
    """
    if len(tokens) % TOKEN_BYTES:
        raise InvalidField(field="tokens", value=len(tokens), why="not a multiple of 4 bytes")
    return len(tokens) // TOKEN_BYTES


def common_tokens(left: bytes, right: bytes) -> int:
    """Returns how many leading tokens of two sequences agree.

    Compares the tokens of one page as two integers, so that no token takes a step of its own.
    """
    size = min(len(left), len(right))
    difference = int.from_bytes(left[:size], "big") ^ int.from_bytes(right[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES


def common_pages(edge: bytes, offset: int, tokens: bytes, start: int, end: int, width: int) -> int:
    """Returns how many whole pages of ``edge[offset:]`` and ``tokens[start:end]`` agree.

    ``width`` is the number of bytes of one page's tokens, and every argument is a multiple of
    it. Bisects on page boundaries, so that the cost is a few memcmps.
    """
    high = min(len(edge) - offset, end - start) // width
    if tokens.startswith(edge[offset : offset + high * width], start):
        return high
    low = 0
    high -= 1
    while low < high:
        middle = (low + high + 1) // 2
        left, right = low * width, middle * width
        if tokens[start + left : start + right] == edge[offset + left : offset + right]:
            low = middle
        else:
            high = middle - 1
    return low
