"""Load or recompute: what is slower to load than to compute is a miss."""

from itertools import pairwise

import pytest

from kvstore.core.tiers.load_or_recompute import (
    FIRST_PROBE_SECONDS,
    MEMORY_SECONDS,
    MOST_LOOK_SECONDS,
    PROBE_SECONDS,
    LoadDecision,
    Wanted,
)

MIB = 1 << 20
# A thousand tokens in a tenth of a second, at this speed.
SPEED = 10_000.0
WANTED = Wanted(byte_count=100 * MIB, token_count=1000)


def worth(decision: LoadDecision, *, queued: int = 0, now: float = 0.0) -> bool:
    """Returns what is decided of the pages that take a tenth of a second to compute."""
    return decision.worth_loading(
        WANTED, prefill_tokens_per_second=SPEED, queued_bytes=queued, now=now
    )


def test_what_was_never_measured_is_loaded() -> None:
    """Before the first measurement a load is how one comes by it."""
    decision = LoadDecision()
    assert decision.bandwidth is None
    assert worth(decision)


def test_a_fast_tier_is_loaded_and_a_slow_one_is_not() -> None:
    """1,000 MiB a second are what it takes for 100 MiB in a tenth of a second."""
    fast, slow = LoadDecision(), LoadDecision()
    fast.observe(1100 * MIB, 1.0, 0.0)
    slow.observe(900 * MIB, 1.0, 0.0)
    assert worth(fast)
    assert not worth(slow)


def test_what_is_loaded_before_counts() -> None:
    """A line of loads makes a fast tier slow."""
    decision = LoadDecision()
    decision.observe(1100 * MIB, 1.0, 0.0)
    assert worth(decision, queued=9 * MIB)
    assert not worth(decision, queued=20 * MIB)


def test_an_engine_that_states_no_speed_loads() -> None:
    """Without a speed there is nothing to compare with."""
    decision = LoadDecision()
    decision.observe(1, 1.0, 0.0)
    assert decision.worth_loading(WANTED, prefill_tokens_per_second=0, queued_bytes=0, now=0.0)


def test_a_slow_tier_is_tried_again_once_in_a_while() -> None:
    """One load is let through after a time, and no second one with it."""
    decision = LoadDecision()
    decision.observe(MIB, 1.0, 0.0)
    assert not worth(decision, now=PROBE_SECONDS / 2)
    assert worth(decision, now=PROBE_SECONDS)
    assert not worth(decision, now=PROBE_SECONDS + 1)
    decision.observe(10_000 * MIB, 1.0, PROBE_SECONDS + 2)
    assert worth(decision, now=PROBE_SECONDS + 2)


def test_large_loads_count_more_than_small_ones() -> None:
    """One small read that was slow says little of the bandwidth."""
    decision = LoadDecision()
    decision.observe(1000 * MIB, 1.0, 0.0)
    decision.observe(1, 0.01, 0.0)
    assert decision.load_seconds(1000 * MIB) < 1.02


def test_old_measurements_fade() -> None:
    """A tier that became slow is slow soon, whatever it was before."""
    decision = LoadDecision()
    decision.observe(10_000 * MIB, 1.0, 0.0)
    decision.observe(100 * MIB, 1.0, 10 * MEMORY_SECONDS)
    bandwidth = decision.bandwidth
    assert bandwidth is not None
    assert 100 * MIB <= bandwidth < 101 * MIB


def test_what_took_no_time_says_nothing() -> None:
    """An empty load and a clock that stands still are no measurements."""
    decision = LoadDecision()
    decision.observe(0, 1.0, 0.0)
    decision.observe(MIB, 0.0, 0.0)
    assert decision.bandwidth is None


def looks(
    decision: LoadDecision, *, speed: float = SPEED, patience: float = 1.0, now: float = 0.0
) -> bool:
    """Returns what is decided of a look for pages that take a tenth of a second to compute."""
    return decision.worth_looking(
        WANTED, prefill_tokens_per_second=speed, queued_bytes=0, patience=patience, now=now
    )


def test_the_cost_of_a_look_counts_before_it() -> None:
    """It is added to the time of the load, and a tier that was never asked is asked."""
    decision = LoadDecision()
    assert looks(decision)
    decision.observe_look(0.09, 0.0)
    assert looks(decision)
    decision.observe(5000 * MIB, 1.0, 0.0)
    assert not looks(decision)


def test_without_a_speed_a_look_may_take_a_few_milliseconds() -> None:
    """The mean counts, and each ten seconds one look is let through."""
    decision = LoadDecision()
    for _ in range(3):
        decision.observe_look(MOST_LOOK_SECONDS / 2, 0.0)
    assert looks(decision, speed=0)
    decision.observe_look(20 * MOST_LOOK_SECONDS, 0.0)
    assert not looks(decision, speed=0)
    assert looks(decision, speed=0, now=PROBE_SECONDS)
    assert not looks(decision, speed=0, now=PROBE_SECONDS + 1)


def test_a_tier_that_answers_slowly_by_its_nature_is_asked_once() -> None:
    """Its stated time counts as a look before the first one."""
    decision = LoadDecision(look_seconds=0.03)
    assert looks(decision, speed=0)
    assert not looks(decision, speed=0)
    assert looks(decision)


def test_a_late_look_counts_twice() -> None:
    """A tier whose answers come after the callers' patience is not asked, however long a prompt."""
    decision = LoadDecision()
    decision.observe_look(0.25, 0.0, is_late=True)
    assert decision.look_seconds == pytest.approx(0.5)
    assert not looks(decision, speed=1, patience=0.25)
    assert looks(decision, speed=1, patience=0.25, now=PROBE_SECONDS)


def late_until(decision: LoadDecision, begun: float, seconds: float) -> list[float]:
    """Returns the times between looks that a tier lets pass which is late all the time."""
    decision.observe_look(0.25, begun, is_late=True)
    asked = [begun]
    for tenth in range(1, int(seconds * 10)):
        now = begun + tenth / 10
        if looks(decision, speed=1, patience=0.25, now=now):
            asked.append(now)
            decision.observe_look(0.25, now, is_late=True)
    return [later - earlier for earlier, later in pairwise(asked)]


def test_a_tier_that_is_late_is_asked_again_after_pauses_that_double() -> None:
    """A stall of a second costs hits for a second, and a tier that stays late few waits."""
    assert late_until(LoadDecision(), 0.0, 30.0) == pytest.approx(
        [FIRST_PROBE_SECONDS * 2**each for each in range(5)] + [PROBE_SECONDS]
    )


def test_an_answer_in_time_replaces_late_ones() -> None:
    """A tier that recovered is used after one probe, and one that is late often is asked seldom."""
    decision = LoadDecision()
    assert len(late_until(decision, 0.0, 20.0)) == 5
    decision.observe_look(0.001, 20.0)
    assert decision.look_seconds == pytest.approx(0.001)
    assert looks(decision, speed=1, patience=0.25, now=20.0)
    for _ in range(3):
        decision.observe_look(0.25, 20.0, is_late=True)
    assert not looks(decision, speed=1, patience=0.25, now=24.9)
    assert looks(decision, speed=1, patience=0.25, now=25.0)


def test_a_look_after_a_pause_replaces_the_mean() -> None:
    """A tier that recovered is used after one probe."""
    decision = LoadDecision()
    decision.observe_look(1.0, 0.0)
    decision.observe_look(0.0, 1.0)
    assert decision.look_seconds == pytest.approx(0.75)
    decision.observe_look(0.001, 1.0 + PROBE_SECONDS)
    assert decision.look_seconds == pytest.approx(0.001)


def test_a_tier_that_works_again_is_used_at_once() -> None:
    """Looks and loads of before it was away say nothing of it."""
    decision = LoadDecision(look_seconds=0.001)
    decision.observe_look(0.25, 0.0, is_late=True)
    decision.observe(1, 10.0, 0.0)
    assert not looks(decision)
    decision.restart()
    assert (decision.look_seconds, decision.bandwidth) == (0.001, None)
    assert looks(decision)
