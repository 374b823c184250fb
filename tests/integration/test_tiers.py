"""Two tiers of a real store with a real client. Tier 1 has a tenth of the working set."""

from random import Random

import pytest

from kvstore.core.pool.tier_policy import TierPolicy
from kvstore_client import Admin, PageRef
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import LAYOUT, SMALL_STORE, holds_tokens, open_client, write_and_insert

SEQUENCES, PAGES = 80, 4
WORKING_SET = SEQUENCES * PAGES
ASKED = 400
# Of tier 1.
SLOTS = WORKING_SET // 10
TIER_2 = ("--tier2-bytes", str(2 * WORKING_SET * LAYOUT.page_bytes), "--verify-rate", "1")


def tokens_of(number: int) -> list[int]:
    """Returns a sequence of four pages and a token. Some share their first page."""
    return [number % 7] * LAYOUT.page_tokens + [
        10_000 * number + each for each in range((PAGES - 1) * LAYOUT.page_tokens + 1)
    ]


def has_room(admin: Admin) -> bool:
    """Returns whether tier 1 has its free reserve, or all its pages have copies in tier 2."""
    stats = admin.stats()
    first, counters = stats.arenas[0], stats.counters
    has_copies = counters.demoted_page_count >= counters.inserted_page_count
    return has_copies or first.free_slot_count >= int(first.slot_count * TierPolicy.low)


@pytest.mark.parametrize(("write", "match"), [("back", "in-place"), ("through", "promote")])
def test_a_tenth_of_the_working_set_is_enough(write: str, match: str) -> None:
    """Two tiers with a tenth of the working set return the right bytes for more than half of it."""
    settings = (*SMALL_STORE, *TIER_2, "--tier2-write", write, "--tier2-match", match)
    with running_store(*settings) as store:
        client, namespace = open_client(store.runtime_dir)
        for number in range(SEQUENCES):
            write_and_insert(namespace, tokens_of(number))
            # A writer that is faster than the mover evicts what has no copy yet.
            assert wait_until(lambda: has_room(client.admin))
        random, whole = Random(7), 0
        for _ in range(ASKED):
            tokens = tokens_of(random.randrange(SEQUENCES))
            with namespace.match(tokens) as found:
                pages: list[PageRef] = list(found.pages)
                assert holds_tokens(namespace, tokens, pages)
                assert found.current
                whole += len(pages) == PAGES
        admin = client.admin
        assert wait_until(lambda: admin.stats().counters.promoted_page_count > 0)
        stats = admin.stats()
        assert stats.counters.demoted_page_count > SLOTS
        assert stats.counters.corrupt_page_count == 0
        # Of one tier alone a tenth would be.
        assert whole > ASKED / 2
        assert [each.tier for each in stats.arenas] == [1, 2]
        client.close()
