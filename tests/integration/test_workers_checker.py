"""The tests' own eyes: a wrong page is seen, whatever is wrong with it."""

from collections.abc import Iterator

import pytest

from pages.stamped_pages import LAYOUT, Stamp, WrongPage, page_count, prompt, stamp_of, stamped
from processes.worker_fleet import Fleet, running_fleet

TOKENS = prompt(1)
STAMP = Stamp("writer", 3)
WHOLE = stamped(TOKENS, 1, STAMP)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Workers on a store of 64 pages."""
    with running_fleet() as running:
        yield running


def test_a_whole_page_says_who_wrote_it() -> None:
    """The bytes of one write are accepted and name that write."""
    assert len(WHOLE) == LAYOUT.page_bytes
    assert stamp_of(WHOLE, TOKENS, 1) == STAMP


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(bytes(LAYOUT.page_bytes), id="never-written"),
        pytest.param(stamped(TOKENS, 0, STAMP), id="another-page-of-the-same-tokens"),
        pytest.param(stamped(prompt(2), 1, STAMP), id="a-page-of-other-tokens"),
        pytest.param(
            stamped(TOKENS, 1, Stamp("writer", 4))[:2048] + WHOLE[2048:], id="torn-of-one-writer"
        ),
        pytest.param(
            WHOLE[:2048] + stamped(TOKENS, 1, Stamp("other", 3))[2048:], id="torn-of-two-writers"
        ),
        *(
            pytest.param(WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :], id=f"byte-{at}")
            for at in (0, 12, 16, 2048, LAYOUT.page_bytes - 1)
        ),
    ],
)
def test_any_other_page_is_wrong(content: bytes) -> None:
    """Pages of other tokens or places, torn pages and single changed bits are refused."""
    with pytest.raises(WrongPage):
        stamp_of(content, TOKENS, 1)


def test_a_byte_that_another_process_changes_is_seen(fleet: Fleet) -> None:
    """One bit flipped through another worker's mapping fails the reader's check, until undone."""
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
    """A page that changes while a worker watches it ends the watch as wrong, not as told."""
    reader, vandal = fleet.spawn("reader"), fleet.spawn("vandal")
    reader.ask("write", TOKENS)
    reader.ask("match", "held", TOKENS)
    vandal.ask("match", "held", TOKENS)
    reader.tell("watch", "held")
    vandal.ask("corrupt", "held", 2, 1000)
    with pytest.raises(WrongPage):
        reader.answer()
