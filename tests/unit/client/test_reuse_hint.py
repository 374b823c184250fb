"""A client's hint as a message."""

from typing import Any

import pytest

from kvstore.v1 import types_pb2
from kvstore_client import ReuseHint


def test_a_hint_says_what_is_known_and_no_more() -> None:
    """Each field is its field of the message; nothing known is the empty message."""
    assert ReuseHint().message() == types_pb2.ReuseHint()
    assert ReuseHint("continues", 2.5, -3).message() == types_pb2.ReuseHint(
        expected_reuse=types_pb2.EXPECTED_REUSE_CONTINUES, horizon_ms=2500, priority=-3
    )
    message = ReuseHint("one_shot").message()
    assert message.expected_reuse == types_pb2.EXPECTED_REUSE_ONE_SHOT


@pytest.mark.parametrize("wrong", ["oneshot", "continue", "", True])
def test_a_hint_that_there_is_not_is_refused(wrong: Any) -> None:  # noqa: ANN401
    """It would be lost, and nobody would know."""
    with pytest.raises(ValueError, match="'continues' or 'one_shot'"):
        ReuseHint(wrong).message()


@pytest.mark.parametrize("horizon", [0.0, 0.0001])
def test_a_short_horizon_is_not_none(horizon: float) -> None:
    """However short, a horizon ends: zero would mean that it does not."""
    assert ReuseHint("continues", horizon).message().horizon_ms == 1
