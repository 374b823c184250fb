"""Tokens as the store is asked for them."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kvstore_client.values.packed_tokens import unpack_tokens
from kvstore_sglang.engine.token_pages import TokenPages

PAGE, VOCABULARY = 4, 100


@given(st.lists(st.integers(0, VOCABULARY + 20), max_size=40))
def test_whole_pages_of_text_are_packed(ids: list[int]) -> None:
    """The packed tokens end with the last whole page before an id beyond the vocabulary."""
    text = next((n for n, each in enumerate(ids) if each >= VOCABULARY), len(ids))
    pages = TokenPages(PAGE, VOCABULARY)
    expected = ids[: text // PAGE * PAGE]
    for tokens in (ids, array("q", ids)):
        assert unpack_tokens(pages.pack(tokens)) == expected


def test_ids_that_are_no_tokens_are_no_pages() -> None:
    """A negative or a huge id makes the request a miss, and no error."""
    pages = TokenPages(PAGE, VOCABULARY)
    assert pages.pack([1, 2, 3, -1]) == b""
    assert pages.pack([1, 2, 3, 1 << 40]) == b""
