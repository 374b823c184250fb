"""Pages of a list."""

from base64 import urlsafe_b64decode

import pytest

from kvstore.core.values.requests import Identity
from kvstore.errors import InvalidField
from kvstore.rpc.wire.fields import Page, PageTokens, fresh_key, page_size_of

KEY = b"k" * 32
MINE = Identity("a")
TOKENS = PageTokens(KEY, b"leases", MINE)
# Numbers of entries of which some have gone.
ENTRIES = [1, 2, 5, 6, 9]


def number_of(entry: int) -> int:
    """Returns the entry itself, which is its number."""
    return entry


def pages(page_size: int) -> list[list[int]]:
    """Returns all pages of ENTRIES, each asked for by the token of the page before."""
    found, token = [], ""
    while True:
        page = TOKENS.page(ENTRIES, number_of, page_size=page_size, page_token=token)
        found.append(list(page.entries))
        token = page.next_page_token
        if not token:
            return found


def test_page_sizes_are_coerced() -> None:
    """A page size of zero means 100, more than 1000 means 1000, and a negative one is refused."""
    assert [page_size_of(size) for size in (0, 1, 1000, 1001, 2**31 - 1)] == [
        100,
        1,
        1000,
        1000,
        1000,
    ]
    with pytest.raises(InvalidField):
        page_size_of(-1)


@pytest.mark.parametrize("page_size", [1, 2, 4, 5, 6, 0])
def test_pages_together_are_the_list(page_size: int) -> None:
    """All pages together hold each entry once, in order, for any page size."""
    found = pages(page_size)
    assert [entry for page in found for entry in page] == ENTRIES
    assert all(0 < len(page) <= (page_size or 100) for page in found)


def test_an_empty_list_is_one_empty_page() -> None:
    """A list without entries has one page, without a token."""
    page: Page[int] = TOKENS.page([], number_of, page_size=0, page_token="")
    assert (list(page.entries), page.next_page_token) == ([], "")


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "é",
        "////",
        PageTokens(bytes(32), b"leases", MINE).make(1),
        PageTokens(KEY, b"namespaces", MINE).make(1),
        PageTokens(KEY, b"leases", Identity("b")).make(1),
        PageTokens(KEY, b"leases", Identity("a", admin=True)).make(1),
        TOKENS.make(1) + "=",
        TOKENS.make(1)[:-4],
        TOKENS.make(1) * 2,
        "A" * 100_000,
    ],
)
def test_tokens_of_elsewhere_are_refused(token: str) -> None:
    """A malformed token, or a token of another server, list or tenant, is refused."""
    with pytest.raises(InvalidField) as caught:
        TOKENS.page(ENTRIES, number_of, page_size=1, page_token=token)
    assert caught.value.metadata == {"field": "page_token", "why": "unknown"}


def test_a_token_tells_its_holder_nothing() -> None:
    """The tokens of neighbouring entries do not show how far apart the entries are."""
    tokens = PageTokens(fresh_key(), b"leases", MINE)
    raw = [urlsafe_b64decode(tokens.make(number)) for number in range(1, 100)]
    assert len({each[-8:] for each in raw}) == len({each[:16] for each in raw}) == 99
    assert all(each[-8:-1] != bytes(7) for each in raw)
    assert tokens.make(7) == tokens.make(7)


def test_a_token_says_its_number() -> None:
    """A token decodes to its number. An empty token is the beginning of the list."""
    assert [TOKENS.number(TOKENS.make(number)) for number in (1, 2**64 - 1)] == [1, 2**64 - 1]
    assert TOKENS.number("") == 0


def test_a_list_goes_on_behind_an_entry_that_has_gone() -> None:
    """The page after an entry that was removed begins at the next entry."""
    page = TOKENS.page(ENTRIES, number_of, page_size=2, page_token=TOKENS.make(3))
    assert list(page.entries) == [5, 6]
