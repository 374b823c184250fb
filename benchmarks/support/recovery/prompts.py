"""Prompts whose tokens and pages follow from their numbers, so that any reader can check them."""

from random import Random

from kvstore_client import NamespaceIdentity, PagedContent, PageLayout

IDENTITY = NamespaceIdentity(b"recovery", display_name="recovery")
# 4 KiB a page of 16 tokens.
LAYOUT = PageLayout.paged(16, PagedContent(2, 1, 16, "float32"))
MOST_PAGES = 8
# That many consecutive prompts share their first page.
FAMILY = 8


def page_count(number: int) -> int:
    """Returns how many whole pages a prompt has."""
    return Random(number).randint(1, MOST_PAGES)


def tokens_of(number: int) -> list[int]:
    """Returns the tokens of a prompt's whole pages, and one that a match leaves."""
    shared = Random(-1 - number // FAMILY)
    own = Random(number)
    own.randint(1, MOST_PAGES)
    count = page_count(number) * LAYOUT.page_tokens
    tokens = [shared.randrange(1 << 31) for _ in range(LAYOUT.page_tokens)]
    return tokens + [own.randrange(1 << 31) for _ in range(count + 1 - LAYOUT.page_tokens)]


def bytes_of(tokens: list[int], page: int) -> bytes:
    """Returns the right bytes of a prompt's page, by all its tokens through the page's end."""
    end = (page + 1) * LAYOUT.page_tokens
    return Random(hash(tuple(tokens[:end]))).randbytes(LAYOUT.page_bytes)
