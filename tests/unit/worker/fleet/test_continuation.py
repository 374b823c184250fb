"""A request continues when another process takes it over."""

import pytest

from inference_worker.engine.request import (
    FinishReason,
    Generation,
    Request,
    ReusedTokens,
    SamplingOptions,
)
from inference_worker.errors import ContinuationError
from inference_worker.fleet.continuation import Continuation

PROMPT = [1, 2, 3, 4]
GREEDY = Request(prompt_ids=PROMPT, max_tokens=5, stop_ids=frozenset([99]))
DRAWN = SamplingOptions(temperature=1.0)
SEEDED = SamplingOptions(temperature=1.0, seed=3)


def request_with(sampling: SamplingOptions) -> Request:
    """Returns a request with some sampling options."""
    return Request(prompt_ids=PROMPT, max_tokens=5, sampling=sampling)


def test_what_was_not_begun_is_asked_as_it_was() -> None:
    """A request without any token is sent to the next process unchanged."""
    way = Continuation(GREEDY)
    assert way.next_request() is GREEDY
    way.moves += 1
    assert way.next_request() is GREEDY
    assert way.take([5, 6]) == [5, 6]


@pytest.mark.parametrize("request_", [GREEDY, request_with(DRAWN)])
def test_it_goes_on_behind_what_was_given(request_: Request) -> None:
    """At each death the given tokens join the prompt, and leave fewer to generate."""
    way = Continuation(request_)
    way.next_request()
    assert way.take([5, 6]) == [5, 6]
    for given, new in (([5, 6], [7]), ([5, 6, 7], [8])):
        way.moves += 1
        asked = way.next_request()
        assert list(asked.prompt_ids) == PROMPT + given
        assert asked.max_tokens == 5 - len(given)
        assert (asked.sampling, asked.stop_ids) == (request_.sampling, request_.stop_ids)
        assert way.take(new) == new
    assert way.given == [5, 6, 7, 8]


def test_a_seed_draws_again_what_was_given() -> None:
    """A seeded request starts again, and tokens that were given are not given twice."""
    way = Continuation(request_with(SEEDED))
    way.next_request()
    way.take([5, 6, 7])
    way.moves += 1
    assert list(way.next_request().prompt_ids) == PROMPT
    assert way.next_request().max_tokens == 5
    assert way.take([5]) == []
    assert way.take([6, 7, 8]) == [8]
    assert way.take([9]) == [9]
    assert way.given == [5, 6, 7, 8, 9]


def test_another_draw_from_a_seed_is_a_failure() -> None:
    """A seed that draws other tokens fails, so nobody gets parts of two answers."""
    way = Continuation(request_with(SEEDED))
    way.next_request()
    way.take([5, 6])
    way.next_request()
    with pytest.raises(ContinuationError) as raised:
        way.take([5, 7])
    assert raised.value.given == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [([], None), ([5], None), ([5, 99], "stop"), ([5, 6, 7, 8, 9], "length")],
)
def test_an_end_that_was_not_told_is_known(given: list[int], reason: str | None) -> None:
    """A request has ended if its process died after the last token."""
    way = Continuation(GREEDY)
    way.next_request()
    way.take(given)
    assert way.ended == (None if reason is None else FinishReason(reason))


def test_the_whole_is_of_the_request_and_not_of_its_last_part() -> None:
    """The result has the caller's prompt, and all tokens that the caller got."""
    way = Continuation(GREEDY)
    way.next_request()
    way.take([5, 6])
    last = Generation(prompt_tokens=6, matched_tokens=0, prefilled_tokens=6, matched_pages=[])
    assert way.whole(last) is last
    way.moves += 1
    way.first_token_seconds = 0.5
    way.next_request()
    way.take([7])
    cases = {(0, 0): (0, 0, 4), (3, 0): (3, 0, 1), (2, 1): (2, 1, 1), (5, 1): (4, 0, 0)}
    for (matched, copied), wanted in cases.items():
        last.matched_tokens, last.copied_tokens = matched, copied
        whole = way.whole(last)
        assert (whole.matched_tokens, whole.copied_tokens, whole.prefilled_tokens) == wanted
        assert (whole.prompt_tokens, whole.output_ids) == (4, [5, 6, 7])
        assert whole.time_to_first_token == 0.5
    assert way.whole(None).prefilled_tokens == 4


@pytest.mark.parametrize(
    ("found", "prompt", "wanted"),
    [
        ((4, 1, 1), 9, (4, 1, 1)),
        ((9, 2, 3), 4, (4, 2, 2)),
        ((9, 6, 3), 4, (4, 4, 0)),
        ((9, 0, 0), 4, (4, 0, 0)),
    ],
)
def test_reused_tokens_are_those_of_the_prompt(
    found: tuple[int, int, int], prompt: int, wanted: tuple[int, int, int]
) -> None:
    """A process may reuse tokens of the answer too, which are not the prompt's."""
    way = Continuation(Request(prompt_ids=[1] * prompt, max_tokens=1))
    reused = way.reused(ReusedTokens(*found))
    assert reused == wanted
    assert reused is not None
    assert reused.memory == wanted[0] - wanted[1] - wanted[2]
    assert way.reused(None) is None


def test_a_moved_request_counts_what_its_last_process_loaded() -> None:
    """Loaded tokens are at most the matched ones of the prompt."""
    way = Continuation(GREEDY)
    way.moves += 1
    last = Generation(
        prompt_tokens=6,
        matched_tokens=6,
        prefilled_tokens=0,
        disk_tokens=3,
        remote_tokens=2,
        matched_pages=[],
    )
    whole = way.whole(last)
    assert (whole.matched_tokens, whole.disk_tokens, whole.remote_tokens) == (4, 3, 1)
