"""The names of blocks in events."""

from hypothesis import given
from hypothesis import strategies as st

from kvstore.kv_events.block_names import BlockNames

NAMES = BlockNames(b"secret", 7)
FIRST_IDS = st.integers(1, 1 << 62)


@given(first=FIRST_IDS, count=st.integers(1, 40), others=st.integers(1, 9))
def test_a_run_has_the_names_of_its_blocks(first: int, count: int, others: int) -> None:
    """Wherever it begins and ends, alone or after others."""
    run, before = range(first, first + count), range(others, others + 3)
    assert NAMES.of((run,)) == [NAMES.one(each) for each in run]
    assert NAMES.of((before, run)) == NAMES.of((before,)) + NAMES.of((run,))


def test_names_are_64_bits_and_differ() -> None:
    """No two of many blocks have one."""
    names = NAMES.of((range(1, 100_001),))
    assert len(set(names)) == len(names)
    assert 1 << 63 < max(names) < 1 << 64
    assert min(names) >= 0


def test_the_same_pages_keep_their_names() -> None:
    """Another server with the key has the same; another key or epoch has others."""
    run = (range(5, 9),)
    assert BlockNames(b"secret", 7).of(run) == NAMES.of(run)
    assert BlockNames(b"another", 7).of(run) != NAMES.of(run)
    assert BlockNames(b"secret", 8).of(run) != NAMES.of(run)
