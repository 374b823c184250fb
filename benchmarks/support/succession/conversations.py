"""Conversations whose tokens follow from their numbers.

Eight consecutive ones share their first pages. A conversation grows turn by turn, and most turns
end within a page.
"""

from hashlib import shake_256
from itertools import accumulate
from random import Random

from kvstore_client import NamespaceIdentity, PagedContent, PageLayout
from support.page_stamps import TOKEN_BYTES

IDENTITY = NamespaceIdentity(b"succession", display_name="succession")
PAGE_TOKENS = 16
# 4 KiB a page.
LAYOUT = PageLayout.paged(PAGE_TOKENS, PagedContent(2, 1, 16, "float32"))
FAMILY = 8
SHARED_TOKENS = 2 * PAGE_TOKENS
MOST_TURNS = 4
TURN_TOKENS = 20, 150


def ends_of(number: int) -> list[int]:
    """Returns the number of tokens at the end of each turn."""
    rng = Random(number)
    turns = [rng.randint(*TURN_TOKENS) for _ in range(rng.randint(1, MOST_TURNS))]
    return [SHARED_TOKENS + end for end in accumulate(turns)]


def tokens_of(number: int, end: int) -> bytes:
    """Returns the first ``end`` tokens, packed."""
    shared = shake_256(b"family %d" % (number // FAMILY)).digest(SHARED_TOKENS * TOKEN_BYTES)
    own = max(end - SHARED_TOKENS, 0) * TOKEN_BYTES
    return (shared + shake_256(b"conversation %d" % number).digest(own))[: end * TOKEN_BYTES]


def first_with(number: int, end: int) -> int:
    """Returns the first conversation that has the page that ends after ``end`` tokens."""
    return number if end > SHARED_TOKENS else number // FAMILY * FAMILY


def has_one_worker(number: int) -> bool:
    """Returns whether only one worker uses a conversation, which may remove it."""
    return number % FAMILY == FAMILY - 1
