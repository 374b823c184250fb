"""Reuse within a page, by the client against a real store."""

from collections.abc import Iterator

import pytest

from kvstore_client import Client, Namespace, ReuseHint
from kvstore_client.testing import running_store
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    nothing_held,
    open_client,
    page_bytes,
    write_and_insert,
)

Opened = tuple[Client, Namespace]


@pytest.fixture
def two() -> Iterator[tuple[Opened, Opened]]:
    """Provides two clients of one store, each with its namespace open."""
    with running_store(*SMALL_STORE) as store:
        first, second = open_client(store.runtime_dir), open_client(store.runtime_dir)
        yield first, second
        first[0].close()
        second[0].close()


def test_a_page_of_another_sequence_is_copied_and_gone_on_in(two: tuple[Opened, Opened]) -> None:
    """A worker copies another sequence's page, continues in the copy, and leaves the source."""
    (_, writer), (client, reader) = two
    pages = write_and_insert(writer, TOKENS)
    other = [*TOKENS[:10], 7, 8, 9]
    with reader.acquire(other, total_page_count=4) as acquired:
        match, reservation = acquired.match, acquired.reservation
        assert match.source is not None
        assert reservation is not None
        assert (match.token_count, match.source.token_count) == (8, 2)
        assert match.source.page == pages[2]
        copy = reservation.pages[0]
        reader.copy_page(match.source, copy)
        match.source.release()
        assert match.source.pin_id is None
        assert reader.page(copy) == page_bytes(TOKENS, 2)
        reader.page(copy)[-8:] = b"my token"
        inserted = reservation.insert(other[8:], position=8, base=match)
        assert (inserted.pages, inserted.published_page_count) == (reservation.pages, 2)
    assert writer.page(pages[2]) == page_bytes(TOKENS, 2)
    with writer.match([*other, 1]) as both:
        assert both.token_count == 12
        assert both.source is not None
        assert both.source.token_count == 1
    assert client.flush(LIMIT)
    assert writer.peek([*other, 1]) == 13


def test_a_whole_sequence_comes_with_its_next_token(two: tuple[Opened, Opened]) -> None:
    """A whole sequence matches all tokens, and its next token for a caller that accepts one."""
    (first, writer), (second, reader) = two
    prompt = TOKENS[:6]
    with writer.acquire(TOKENS, total_page_count=5) as acquired:
        assert acquired.reservation is not None
        acquired.reservation.insert(TOKENS, position=0, next_token=5)
        acquired.reservation.insert(prompt, position=0, next_token=0)
    with reader.match(prompt, accept_next_token=True) as match:
        assert (match.token_count, match.next_token) == (4, 0)
        assert match.source is not None
        assert match.source.token_count == 2
    with reader.match(prompt) as match:
        assert match.next_token is None
        assert match.source is not None
        assert match.source.token_count == 1
    with reader.acquire(TOKENS, total_page_count=5, accept_next_token=True) as acquired:
        assert (acquired.match.token_count, acquired.match.next_token) == (16, 5)
        assert acquired.reservation is not None
        assert acquired.reservation.page_count == 1
    with reader.match(TOKENS[:3]) as match:
        assert (match.token_count, match.pages) == (0, [])
        assert match.source is not None
        assert match.pin_id is not None
    assert all(each.flush(LIMIT) for each in (first, second))
    assert nothing_held(second)


def test_what_is_hinted_as_one_shot_goes_first(two: tuple[Opened, Opened]) -> None:
    """Pages hinted as one_shot are evicted before slightly older ones."""
    # A new kind of hint has little weight, so the others are only a little older.
    (_, writer), (_, reader) = two
    kept, once = TOKENS[:8], [900 + each for each in range(8)]
    write_and_insert(writer, kept)
    with writer.acquire(once, total_page_count=2) as acquired:
        assert acquired.reservation is not None
        acquired.reservation.insert(once, position=0, hint=ReuseHint("one_shot"))
    for start in (800, 700):
        write_and_insert(writer, [start + each for each in range(8)])
    page_count = 0
    while reader.peek([*once, 1]) == 8:
        page_count += 1
        with reader.reserve(start_page=0, page_count=page_count):
            pass
    assert reader.peek([*kept, 1]) == 8
