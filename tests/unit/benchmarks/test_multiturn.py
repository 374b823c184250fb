"""The figures of a replay's clients, from given answers."""

from multiturn import figures

from support.workloads.clients import Served
from support.workloads.trace import Turn


def test_shares_are_of_the_tokens_that_were_answered() -> None:
    """A failed request counts as an error and in no other figure."""
    asked = [Turn(0, [1] * 100, 0), Turn(1, [1] * 100, 80), Turn(2, [1] * 50, 50)]
    served = [
        Served(100, 0, 4, first_token_s=0.3, whole_s=0.4, late_s=0.0),
        Served(100, 60, 4, first_token_s=0.1, whole_s=0.2, late_s=0.0),
        Served(50, 0, 0, first_token_s=0.0, whole_s=0.0, late_s=0.5, error="RateLimitError"),
    ]
    found = figures(asked, served)
    assert (found["requests"], found["errors"], found["prompt_tokens"]) == (3, 1, 200)
    assert (found["cached_share"], found["ideal_share"]) == (0.3, 0.4)
    assert found["ttft_p50_ms"] == 200.0
    assert found["late_p99_ms"] > 400


def test_a_replay_of_which_nothing_was_answered_has_no_shares() -> None:
    """A replay without answers has shares of 0, and only errors."""
    found = figures([Turn(0, [1], 0)], [Served(1, 0, 0, 0.0, 0.0, 0.0, "APIConnectionError")])
    assert (found["errors"], found["cached_share"], found["ideal_share"]) == (1, 0.0, 0.0)
