"""The latest batches, and for whom they are enough."""

from kvstore.kv_events.replay_buffer import ReplayBuffer, SentBatch


def batch(number: int, size: int = 1) -> SentBatch:
    """Returns a batch of some bytes."""
    return SentBatch(number, b"x" * size)


def test_it_keeps_the_latest() -> None:
    """By their number, and by their bytes."""
    buffer = ReplayBuffer(most_batches=3, most_bytes=10)
    for number in range(5, 10):
        buffer.add(batch(number), is_base=False)
    assert [each.number for each in buffer.since(0)] == [7, 8, 9]
    assert [each.number for each in buffer.since(9)] == [9]
    assert list(buffer.since(10)) == []
    buffer.add(batch(10, 9), is_base=False)
    assert [each.number for each in buffer.since(0)] == [9, 10]
    buffer.add(batch(11, 11), is_base=False)
    assert list(buffer.since(0)) == []


def test_it_is_enough_from_what_it_has_on() -> None:
    """Or from a base, whatever a consumer has."""
    buffer = ReplayBuffer(most_batches=3)
    assert not buffer.is_enough(0)
    buffer.add(batch(5), is_base=True)
    for number in (6, 7):
        buffer.add(batch(number), is_base=False)
    assert buffer.is_enough(0)
    buffer.add(batch(8), is_base=False)
    assert [buffer.is_enough(each) for each in (0, 5, 6, 9)] == [False, False, True, True]
    buffer.add(batch(9), is_base=True)
    assert buffer.is_enough(0)
