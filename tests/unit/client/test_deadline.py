"""The time of one request."""

import pytest

from kvstore_client.calls.deadlines import Deadline
from kvstore_client.errors import StoreTimedOut


def test_what_is_left_shrinks() -> None:
    """The rest is never more than the whole, and never grows."""
    deadline = Deadline(60)
    first = deadline.remaining()
    assert 0 < deadline.remaining() <= first <= 60


def test_after_the_end_nothing_is_asked() -> None:
    """A deadline that passed is a timeout, and no call with no time."""
    with pytest.raises(StoreTimedOut):
        Deadline(0).remaining()
