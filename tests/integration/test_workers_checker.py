"""The tests' own checks find a wrong page, whatever is wrong with it."""

import pytest

from pages.stamped_pages import LAYOUT, WrongPage, page_count, prompt
from processes.worker_fleet import Fleet

TOKENS = prompt(1)


def test_a_byte_that_another_process_changes_is_seen(fleet: Fleet) -> None:
    """A bit flipped through another worker's mapping fails the reader's check until undone."""
    reader, vandal = fleet.spawn("reader"), fleet.spawn("vandal")
    reader.ask("write", TOKENS)
    reader.ask("match", "held", TOKENS)
    vandal.ask("match", "held", TOKENS)
    assert reader.ask("check", "held") == vandal.ask("check", "held")
    for page in range(page_count(TOKENS)):
        vandal.ask("corrupt", "held", page, LAYOUT.page_bytes - 1)
        with pytest.raises(WrongPage):
            reader.ask("check", "held")
        with pytest.raises(WrongPage):
            reader.ask("stamps", TOKENS)
        vandal.ask("corrupt", "held", page, LAYOUT.page_bytes - 1)
        assert len(reader.ask("check", "held")) == page_count(TOKENS)


def test_a_watch_ends_with_what_it_saw(fleet: Fleet) -> None:
    """A page that changes while a worker watches it ends the watch as wrong."""
    reader, vandal = fleet.spawn("reader"), fleet.spawn("vandal")
    reader.ask("write", TOKENS)
    reader.ask("match", "held", TOKENS)
    vandal.ask("match", "held", TOKENS)
    reader.tell("watch", "held")
    vandal.ask("corrupt", "held", 2, 1000)
    with pytest.raises(WrongPage):
        reader.answer()
