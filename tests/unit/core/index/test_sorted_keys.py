"""Keys in order, in runs: the same as one sorted list, whatever comes and goes."""

from bisect import bisect_left, insort
from random import Random

import pytest

from kvstore.core.index.children import RUN, SortedKeys


def key(number: int) -> bytes:
    """Returns a key that stands in the order where its number does."""
    return number.to_bytes(4, "big")


def alike(keys: SortedKeys, listed: list[bytes], sought: bytes) -> bool:
    """Returns whether both have the same keys around and after one."""
    at = bisect_left(listed, sought)
    before = listed[at - 1] if at else None
    after = listed[at] if at < len(listed) else None
    return keys.around(sought) == (before, after) and list(keys.since(sought)) == listed[at:]


@pytest.mark.parametrize("order", ["rising", "falling", "any"])
def test_keys_stand_as_in_one_sorted_list(order: str) -> None:
    """Thousands come in some order, and go in another; at each tenth step all is compared."""
    numbers = list(range(1, 6 * RUN, 2))
    random = Random(7)
    if order == "any":
        random.shuffle(numbers)
    elif order == "falling":
        numbers.reverse()
    keys, listed = SortedKeys(key(numbers[0])), [key(numbers[0])]
    for step, number in enumerate(numbers[1:]):
        keys.add(key(number))
        insort(listed, key(number))
        if step % 97 == 0:
            assert alike(keys, listed, key(random.randrange(6 * RUN)))
    assert list(keys.since(b"")) == listed
    random.shuffle(numbers)
    for step, number in enumerate(numbers):
        keys.drop(key(number))
        listed.remove(key(number))
        if listed and step % 97 == 0:
            assert alike(keys, listed, key(random.randrange(6 * RUN)))
    assert list(keys.since(b"")) == []


def test_no_run_is_long() -> None:
    """However many keys there are, a change moves those of one run."""
    keys = SortedKeys(key(0))
    for number in range(1, 5 * RUN):
        keys.add(key(number))
    assert max(map(len, keys._runs)) < 2 * RUN
    assert len(keys._runs) > 2


def test_nothing_stands_around_the_ends() -> None:
    """Before the first key and after the last there is nothing."""
    keys = SortedKeys(key(5))
    assert keys.around(key(4)) == (None, key(5))
    assert keys.around(key(5)) == (None, key(5))
    assert keys.around(key(6)) == (key(5), None)
    assert list(keys.since(key(6))) == []
