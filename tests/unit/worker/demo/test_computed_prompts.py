"""Shared prefixes are counted in tokens, independent of pages."""

from inference_worker.demo.comparison import ComputedPrompts
from inference_worker.pages.acquisition import LEAST_COPIED


def test_nothing_is_shared_with_nothing() -> None:
    """The first prompt shares nothing."""
    assert ComputedPrompts().shared([1, 2, 3]) == 0


def test_the_longest_prefix_counts() -> None:
    """The computed prompt with the longest common prefix counts, less one token that has to run."""
    known = ComputedPrompts()
    known.add([1, 2, 3, 4, 5])
    known.add([1, 2, 9, 9])
    assert known.shared([1, 2, 3, 7]) == 3
    assert known.shared([1, 2, 9, 9, 9]) == 4
    assert known.shared([2, 2]) == 0
    assert known.shared([1, 2, 3]) == 2
    assert known.shared([1, 2, 3, 4, 5, 6, 7]) == 5


def test_a_known_end_leaves_nothing_to_run() -> None:
    """The whole prompt is shared only if its next token is known."""
    known = ComputedPrompts()
    known.add([1, 2, 3, 4, 5], 3, 5)
    assert known.shared([1, 2, 3]) == 3
    assert known.shared([1, 2, 3, 4]) == 3
    assert known.shared([1, 2, 3, 4, 5]) == 5


def test_few_tokens_are_not_reused() -> None:
    """A few shared tokens are not reused, unless nothing is left to run."""
    known = ComputedPrompts()
    known.add(list(range(20)), 3)
    for count in (LEAST_COPIED - 1, LEAST_COPIED):
        prompt = [*range(count), 99, 99]
        assert known.shared(prompt) == count
        assert known.reused(prompt) == (count if count == LEAST_COPIED else 0)
    assert known.reused([0, 1, 2]) == 3
