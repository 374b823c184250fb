"""Tokens are drawn from the distribution that the options define. The best token stays known."""

import math
from collections import Counter

import pytest
import torch

from inference_worker.engine.request import GREEDY, SamplingOptions
from inference_worker.engine.sampling import SampledToken, Sampler, choose_all

LOGITS = [2.0, -1.0, 0.5, 3.0, 1.0, 2.5, -4.0, 0.0]
DRAWS = 1_000


def naive_probabilities(logits: list[float], options: SamplingOptions) -> list[float]:
    """Computes each token's probability, in the order of the contract's sentences."""
    weights = [math.exp(each / options.temperature) for each in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    kept = order[: options.top_k or len(order)]
    total = sum(weights[i] for i in kept)
    nucleus: list[int] = []
    for i in kept:
        if sum(weights[j] for j in nucleus) / total >= options.top_p:
            break
        nucleus.append(i)
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(logits))]


def draws(options: SamplingOptions, count: int = DRAWS) -> list[SampledToken]:
    """Draws from the same logits many times."""
    sampler = Sampler(options)
    return [sampler.choose(torch.tensor(LOGITS)) for _ in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=1.0, seed=1),
        SamplingOptions(temperature=2.5, seed=2),
        SamplingOptions(temperature=0.4, seed=3),
        SamplingOptions(temperature=1.0, top_k=3, seed=4),
        SamplingOptions(temperature=1.0, top_k=100, seed=5),
        SamplingOptions(temperature=1.0, top_p=0.8, seed=6),
        # A top_p of 0.9 keeps fewer of the four best tokens than of all tokens.
        SamplingOptions(temperature=2.0, top_k=4, top_p=0.9, seed=7),
    ],
    ids=str,
)
def test_draws_follow_the_options(options: SamplingOptions) -> None:
    """Tokens are drawn as often as a naive computation says, and excluded ones never."""
    wanted = naive_probabilities(LOGITS, options)
    counts = Counter(choice.token for choice in draws(options))
    assert set(counts) <= {i for i, share in enumerate(wanted) if share > 0}
    for token, share in enumerate(wanted):
        # Five standard deviations, with a fixed seed.
        allowed = 5 * math.sqrt(share * (1 - share) * DRAWS)
        assert abs(counts[token] - share * DRAWS) <= allowed


def test_the_best_token_is_known_beside_the_draw() -> None:
    """The best token is the argmax of the raw logits, independent of the draw."""
    found = draws(SamplingOptions(temperature=3.0, seed=8), 100)
    assert {choice.argmax for choice in found} == {3}
    assert {choice.token for choice in found} > {3}


@pytest.mark.parametrize("options", [GREEDY, SamplingOptions(temperature=1e-9, top_p=0.1, top_k=2)])
def test_temperature_zero_is_greedy(options: SamplingOptions) -> None:
    """Temperature 0 takes the best token, and the first of equal ones."""
    assert options.is_greedy
    assert set(draws(options, 20)) == {SampledToken(3, 3)}
    assert Sampler(options).choose(torch.tensor([1.0, 5.0, 5.0])) == SampledToken(1, 1)


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=5.0, top_k=1, seed=1),
        SamplingOptions(temperature=5.0, top_p=1e-6, seed=1),
    ],
)
def test_one_token_left_is_always_drawn(options: SamplingOptions) -> None:
    """The best token is kept, even if the options keep almost nothing."""
    assert {choice.token for choice in draws(options, 50)} == {3}


def test_a_seed_gives_the_same_draws() -> None:
    """A seed repeats its draws, another or none does not, and torch's own state is untouched."""
    state = torch.get_rng_state()
    first = draws(SamplingOptions(temperature=1.0, seed=9), 200)
    assert draws(SamplingOptions(temperature=1.0, seed=9), 200) == first
    assert draws(SamplingOptions(temperature=1.0, seed=10), 200) != first
    free = SamplingOptions(temperature=1.0)
    assert draws(free, 200) != draws(free, 200)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_request_gets_in_a_batch_what_it_gets_alone() -> None:
    """Greedy and seeded requests get the same tokens from equal logits, in any batch."""
    options = [
        SamplingOptions(temperature=2.0, seed=11),
        GREEDY,
        SamplingOptions(temperature=1.0, top_k=3, seed=12),
        SamplingOptions(temperature=3.0, top_p=0.9, seed=13),
        GREEDY,
    ]
    made = torch.Generator().manual_seed(1)
    steps = torch.randn((30, len(options), 50), generator=made)
    batch = [Sampler(each) for each in options]
    together = [choose_all(logits, batch) for logits in steps]
    for row, each in enumerate(options):
        alone = Sampler(each)
        assert [alone.choose(logits[row]) for logits in steps] == [step[row] for step in together]


def test_each_row_has_its_sampler() -> None:
    """A number of rows other than the number of samplers is an error of the caller."""
    assert choose_all(torch.empty(0, 8), []) == []
    with pytest.raises(ValueError, match="shorter"):
        choose_all(torch.zeros(2, 8), [Sampler(GREEDY)])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"seed": -1},
    ],
    ids=str,
)
def test_options_without_sense_are_refused(values: dict[str, float]) -> None:
    """Options that define no distribution are refused."""
    with pytest.raises(ValueError, match=next(iter(values))):
        SamplingOptions(**values)  # type: ignore[arg-type]
