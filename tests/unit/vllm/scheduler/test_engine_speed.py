"""The prefill speed of an engine, whose steps may overlap."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from kvstore_vllm.scheduler.engine_speed import KNOWN_TOKENS, LEAST_TOKENS, STEPS, EngineSpeed

LONG = 1 << 20


@dataclass
class Asked:
    """The fields of vLLM's ``Request`` that are read."""

    request_id: str
    num_prompt_tokens: int = LONG
    num_tokens: int = LONG
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    all_token_ids: tuple[int, ...] = ()


@dataclass
class Engine:
    """vLLM's scheduler as far as it matters here, with a clock that tests move."""

    now: float = 100.0
    stated: list[float] = field(default_factory=list)
    requests: dict[str, Asked] = field(default_factory=dict)
    steps: list[Mapping[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speed = EngineSpeed(self.stated.append, clock=lambda: self.now)

    def arrive(self, name: str, prompt: int = LONG) -> None:
        """A request comes."""
        self.requests[name] = Asked(name, prompt)
        self.speed.arrived(self.requests[name])

    def schedule(self, *, measured: bool = True, **tokens: int) -> None:
        """Begins a step."""
        self.speed.scheduled(tokens, (), measured=measured)
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
            self.requests[name].num_in_flight_tokens += count
        self.steps.append(tokens)

    def take_output(self, seconds: float = 0.0) -> None:
        """The output of the oldest step comes after so many seconds."""
        self.now += seconds
        for name, count in self.steps.pop(0).items():
            if name in self.requests:
                self.requests[name].num_in_flight_tokens -= count
        self.speed.output_arrived()

    def step(self, seconds: float, **tokens: int) -> None:
        """Runs a whole step."""
        self.schedule(**tokens)
        self.take_output(seconds)


@pytest.fixture
def engine() -> Engine:
    """Provides an engine with a request of a long prompt and one that decodes."""
    made = Engine()
    made.arrive("a")
    made.arrive("d", prompt=1)
    made.requests["d"].num_computed_tokens = 1
    return made


def test_nothing_is_stated_before_enough_was_measured(engine: Engine) -> None:
    """The first steps may be slower than all others."""
    engine.step(1.0, a=KNOWN_TOKENS - 1)
    assert engine.stated == []
    engine.step(1.0, a=KNOWN_TOKENS)
    assert engine.stated == [KNOWN_TOKENS]


def test_pauses_between_steps_do_not_count(engine: Engine) -> None:
    """An idle engine computes nothing, and a decode's time is no prefill's."""
    for _ in range(3):
        engine.step(0.5, a=1_000)
        engine.now += 60.0
        engine.step(7.0, d=1)
    assert engine.stated == [2_000.0, 2_000.0]


def test_a_step_that_begins_before_the_last_ended_counts_from_there(engine: Engine) -> None:
    """With async scheduling a step waits for the one before it, also if that was a decode's."""
    engine.schedule(d=1)
    for _ in range(4):
        engine.schedule(a=1_000)
        engine.take_output(0.5)
    engine.take_output(0.5)
    assert set(engine.stated) == {2_000.0}
    assert len(engine.stated) == 3


def test_a_request_may_be_in_two_steps_at_a_time(engine: Engine) -> None:
    """The chunks of one prompt are told apart."""
    engine.schedule(a=1_000)
    for _ in range(3):
        engine.schedule(a=1_000)
        engine.take_output(0.25)
    engine.take_output(0.25)
    assert engine.stated == [4_000.0] * 3


def test_a_stalled_or_a_short_step_counts_little(engine: Engine) -> None:
    """The median is weighted by tokens."""
    for _ in range(3):
        engine.step(0.5, a=1_000)
    engine.step(50.0, a=1_000)
    for _ in range(5):
        engine.step(0.5, a=LEAST_TOKENS)
    assert set(engine.stated) == {2_000.0}


@pytest.mark.parametrize(
    "step",
    [
        {"a": LEAST_TOKENS - 1},
        {"a": 1_000, "d": 500},
        {"d": 2_000},
        {"a": 2_000, "measured": False},
    ],
    ids=["short", "mixed", "decode", "load"],
)
def test_other_steps_measure_nothing(engine: Engine, step: dict[str, int]) -> None:
    """Neither short ones, nor those that do much beside a prefill."""
    for _ in range(20):
        engine.schedule(**step)  # type: ignore[arg-type]
        engine.take_output(0.1)
    assert engine.stated == []


def test_the_speed_follows_the_engine(engine: Engine) -> None:
    """Old steps count no more."""
    for _ in range(STEPS):
        engine.step(1.0, a=1_000)
    for _ in range(STEPS):
        engine.step(0.5, a=1_000)
    assert (engine.stated[0], engine.stated[-1]) == (1_000.0, 2_000.0)


def test_an_aborted_request_measures_nothing(engine: Engine) -> None:
    """The end of its step is not seen, so neither its time nor the next one's is known."""
    engine.arrive("b")
    engine.step(0.5, a=1_000)
    engine.schedule(b=1_000)
    del engine.requests["b"]
    engine.take_output(9.0)
    engine.speed.scheduled({}, {"b"})
    engine.step(9.0, a=1_000)
    engine.step(0.5, a=1_000)
    assert engine.stated == [2_000.0]


def test_steps_that_end_together_measure_nothing(engine: Engine) -> None:
    """An end that is seen late says nothing about one step's time."""
    engine.step(0.5, a=1_000)
    engine.schedule(a=1_000)
    engine.schedule(a=1_000)
    engine.requests["a"].num_in_flight_tokens = 0
    engine.now += 5.0
    engine.speed.output_arrived()
    engine.speed.output_arrived()
    assert engine.stated == []
