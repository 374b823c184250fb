"""An operator evicts pages that another process has pinned: they stay readable until released."""

import pytest

from kvstore_client import errors
from pages.stamped_pages import LAYOUT, PART_PAGES, PART_TOKENS, page_count, prompt
from processes.worker_fleet import POOL_SLOTS, Fleet, Slots

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
LONGER = prompt(1, 2, 3)
PRESSURE = [prompt(4, number) for number in range(40)]


def test_a_pinned_prefix_that_is_evicted_is_detached(fleet: Fleet) -> None:
    """An evicted, pinned prefix is not matched any more, and its holder reads it unchanged."""
    holder, writer = fleet.spawn("holder"), fleet.spawn("writer")
    writer.ask("write", TOKENS)
    assert holder.ask("match", "held", TOKENS) == len(TOKENS) - 1
    written = holder.ask("check", "held")
    holder.tell("watch", "held")
    assert fleet.evict(TOKENS[: LAYOUT.page_tokens]) == (0, PAGES)
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, detached=PAGES)
    assert (writer.ask("peek", TOKENS), writer.ask("stamps", TOKENS)) == (0, [])

    # The same tokens are cached anew in other slots, and both copies are right under pressure.
    assert writer.ask("write", TOKENS)["published"] == PAGES
    assert len(set(writer.ask("stamps", TOKENS)) - set(written)) == PAGES
    assert writer.ask("churn", PRESSURE, 1)["published"] > 2 * POOL_SLOTS
    assert fleet.slots().detached == PAGES
    assert holder.stop() > 0
    assert holder.ask("check", "held") == written

    # The last release gives the slots back.
    before = fleet.slots()
    holder.ask("release", "held")
    assert fleet.slots() == before._replace(free=before.free + PAGES, detached=0)


def test_nothing_is_published_on_a_path_that_was_removed(fleet: Fleet) -> None:
    """An insert below a detached path fails by name, and is not matched."""
    holder, witness = fleet.spawn("holder"), fleet.spawn("witness")
    witness.ask("write", TOKENS)
    assert holder.ask("acquire", "open", LONGER) == len(TOKENS) - 1
    holder.ask("fill", "open")
    assert fleet.evict(TOKENS[: LAYOUT.page_tokens]) == (0, PAGES)
    with pytest.raises(errors.ParentDetached) as refused:
        holder.ask("insert", "open", PAGES, PAGES + PART_PAGES)
    assert refused.value.metadata["page_position"] == str(PAGES)
    # Also where the same path is cached again: it is not what was computed on.
    assert witness.ask("write", TOKENS)["published"] == PAGES
    with pytest.raises(errors.ParentDetached):
        holder.ask("insert", "open", PAGES, PAGES + PART_PAGES)
    assert witness.ask("peek", LONGER) == len(TOKENS) - 1
    assert fleet.slots() == Slots(
        POOL_SLOTS - 2 * PAGES - PART_PAGES, PART_PAGES, cached=PAGES, detached=PAGES
    )
    assert holder.ask("own_pages_are_untouched", "open")
    holder.ask("release", "open")
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, 0, PAGES)


def test_a_writer_whose_pages_are_removed_goes_no_further(fleet: Fleet) -> None:
    """A writer stops when its own inserted pages are evicted during its request."""
    writer = fleet.spawn("writer")
    assert writer.ask("acquire", "open", TOKENS) == 0
    writer.ask("fill", "open")
    assert writer.ask("insert", "open", 0, 3)[1] == 3
    assert fleet.evict(TOKENS[: 2 * LAYOUT.page_tokens]) == (0, 2)
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, PAGES - 3, cached=1, detached=2)
    with pytest.raises(errors.ParentDetached):
        writer.ask("insert", "open", 3, PAGES)
    assert writer.ask("peek", TOKENS) == LAYOUT.page_tokens
    writer.ask("release", "open")
    assert fleet.slots() == Slots(POOL_SLOTS - 1, 0, 1)


def test_what_is_above_stays_and_what_is_not_pinned_goes_at_once(fleet: Fleet) -> None:
    """Evicting from the middle of a path keeps the beginning, pinned and matchable."""
    holder, writer = fleet.spawn("holder"), fleet.spawn("writer")
    writer.ask("write", TOKENS)
    assert holder.ask("match", "held", prompt(1)) == PART_TOKENS
    assert fleet.evict(TOKENS[: 3 * LAYOUT.page_tokens]) == (PAGES - PART_PAGES, PART_PAGES - 2)
    assert fleet.slots() == Slots(POOL_SLOTS - PART_PAGES, 0, cached=2, detached=PART_PAGES - 2)
    assert writer.ask("peek", TOKENS) == 2 * LAYOUT.page_tokens
    writer.ask("churn", PRESSURE, 1)
    assert writer.ask("peek", TOKENS) == 2 * LAYOUT.page_tokens
    assert len(holder.ask("check", "held")) == PART_PAGES
    holder.ask("release", "held")
    assert fleet.settled()
