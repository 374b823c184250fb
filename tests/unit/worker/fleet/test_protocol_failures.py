"""An error that a client may see crosses a fleet's link unchanged."""

from dataclasses import replace

import pytest

from inference_worker.engine.request import Request
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadSaltError,
    EngineBusyError,
    EngineGoneError,
    RequestTooLongError,
    WorkerError,
)
from inference_worker.fleet.protocol import failure_frame, failure_of, request_frame, request_of


@pytest.mark.parametrize(
    "error",
    [
        BadPromptError("its ids"),
        BadLengthError("0 tokens"),
        BadSaltError("its salt"),
        RequestTooLongError(9, 5, 12),
        EngineBusyError("full"),
        EngineGoneError("ended"),
    ],
)
def test_what_a_client_is_told_keeps_its_type(error: WorkerError) -> None:
    """An error for a client keeps its type and its text."""
    found = failure_of(failure_frame(7, error).fields)
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_request_is_the_same_on_the_other_side() -> None:
    """A request arrives with all its fields, including its trace."""
    request = Request(
        prompt_ids=[1, 2],
        max_tokens=3,
        stop_ids=frozenset({4}),
        cache_prefix=False,
        min_cache_tokens=5,
        cache_salt="salt",
        traceparent="00-1-2-01",
    )
    found = request_of(request_frame(7, request))
    assert replace(found, prompt_ids=list(found.prompt_ids)) == request


@pytest.mark.parametrize("error", [ValueError("of a forward"), TypeError("bug"), WorkerError("x")])
def test_any_other_is_the_servers(error: Exception) -> None:
    """Any other error is the server's, such as a ``ValueError`` of a forward."""
    found = failure_of(failure_frame(7, error).fields)
    assert type(found) is WorkerError
    assert str(error) in str(found)
