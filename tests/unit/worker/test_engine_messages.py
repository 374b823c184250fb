"""A failure is the same on the other side of a fleet's link, if it is one that a client is told."""

import pytest

from inference_worker.engine_messages import failure_frame, failure_of
from inference_worker.errors import (
    BadLengthError,
    BadPromptError,
    BadSaltError,
    EngineBusyError,
    EngineGoneError,
    RequestTooLongError,
    WorkerError,
)


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
    """So does its text."""
    found = failure_of(failure_frame(7, error).fields)
    assert (type(found), str(found)) == (type(error), str(error))


@pytest.mark.parametrize("error", [ValueError("of a forward"), TypeError("bug"), WorkerError("x")])
def test_any_other_is_the_servers(error: Exception) -> None:
    """A ``ValueError`` out of a forward is no mistake of the client's."""
    found = failure_of(failure_frame(7, error).fields)
    assert type(found) is WorkerError
    assert str(error) in str(found)
