"""The choice of source pages that are worth a copy."""

import pytest

from inference_worker.pages.acquisition import LEAST_COPIED, is_worth_copying
from kvstore_client import Client, NamespaceIdentity, PagedContent, PageLayout
from pages.stamped_pages import LIMIT

PAGE = 16
LAYOUT = PageLayout.paged(PAGE, PagedContent(1, 1, 8, "float32"))
BEST = 7


@pytest.mark.parametrize(
    ("shared", "worth"),
    [
        (0, False),
        (1, False),
        (LEAST_COPIED - 1, False),
        (LEAST_COPIED, True),
        (PAGE - 1, True),
        (PAGE, False),  # the page is matched in place, so there is no source
        (PAGE + 1, True),
    ],
)
def test_a_source_is_copied_where_that_saves(client: Client, shared: int, worth: bool) -> None:  # noqa: FBT001
    """A source is copied from a minimum of tokens on, or if it follows matched pages."""
    namespace = client.namespace(NamespaceIdentity(b"worth %d" % shared), LAYOUT)
    assert namespace.wait_open(LIMIT), namespace.failure
    ids = list(range(100, 100 + 2 * PAGE))
    with namespace.reserve(start_page=0, page_count=2) as reservation:
        reservation.insert(ids, position=0)
    with namespace.match([*ids[:shared], *range(500, 500 + PAGE)]) as match:
        assert is_worth_copying(match) is worth


def test_a_source_is_copied_where_nothing_has_to_run_then(client: Client) -> None:
    """A source of any length is copied if its next token is known."""
    namespace = client.namespace(NamespaceIdentity(b"known"), LAYOUT)
    assert namespace.wait_open(LIMIT), namespace.failure
    with namespace.reserve(start_page=0, page_count=1) as reservation:
        reservation.insert([1, 2, 3], position=0, next_token=BEST)
    with namespace.match([1, 2, 3], accept_next_token=True) as match:
        assert match.next_token == BEST
        assert is_worth_copying(match)
    with namespace.match([1, 2, 3]) as match:
        assert match.source is not None
        assert not is_worth_copying(match)
