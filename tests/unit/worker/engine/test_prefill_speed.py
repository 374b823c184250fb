"""The prefill speed that an engine reports to the store."""

import pytest

from inference_worker.engine.page_supply import LEAST_TOKENS, PrefillSpeed


def test_before_a_prompt_nothing_is_known() -> None:
    """Short prompts, and prompts that took no time, give no speed."""
    speed = PrefillSpeed()
    speed.note(LEAST_TOKENS - 1, 1.0)
    speed.note(LEAST_TOKENS, 0.0)
    assert speed.tokens_per_second == 0.0


def test_the_latest_prompts_count_most() -> None:
    """A changed speed is reported after some prompts, and one prompt changes it only in part."""
    speed = PrefillSpeed()
    speed.note(1000, 1.0)
    assert speed.tokens_per_second == pytest.approx(1000)
    speed.note(100, 1.0)
    assert 100 < speed.tokens_per_second < 1000
    for _ in range(20):
        speed.note(100, 1.0)
    assert speed.tokens_per_second == pytest.approx(100, rel=0.1)
