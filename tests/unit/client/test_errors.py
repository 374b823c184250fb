"""The store's errors as exception types."""

import re

import grpc
import pytest
from google.rpc import status_pb2

from kvstore.v1 import errors_pb2, store_pb2
from kvstore_client import errors
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_store import ScriptedCalls, refusal

REASONS = [
    name.removeprefix("ERROR_REASON_")
    for name, number in errors_pb2.ErrorReason.items()
    if number != 0
]


def error_of_call(runtime_dir: RuntimeDir) -> errors.StoreError:
    """Returns the error that a call raises for the scripted answer."""
    calls = StoreCalls(runtime_dir.grpc_target, "c")
    with pytest.raises(errors.StoreError) as raised:
        calls.call(calls.store.GetStats, store_pb2.GetStatsRequest(), 10)
    calls.close()
    return raised.value


def test_every_reason_of_the_contract_has_one_class() -> None:
    """The classes of refusals are exactly the reasons of the contract, in its order."""
    assert list(errors.StoreRefused.by_reason) == REASONS


def test_the_docstring_draws_the_tree() -> None:
    """The module's docstring draws a tree of exactly its exceptions."""
    drawn = re.findall(r"^    [│├└─ ]*(\w+) {2,}", errors.__doc__ or "", re.MULTILINE)
    defined = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and "kvstore" in value.__module__
    ]
    assert sorted(drawn) == sorted(set(defined) - {"DecodeError"})


@pytest.mark.parametrize("reason", REASONS)
def test_a_status_becomes_the_class_of_its_reason(reason: str) -> None:
    """A status becomes an error of its reason's class, with message, metadata and delay."""
    details = refusal(reason, retry_after_s=0.25, field="tokens")
    error = errors.error_of_status(status_pb2.Status.FromString(details))
    assert type(error) is errors.StoreRefused.by_reason[reason]
    assert (error.reason, error.metadata, error.retry_after_s) == (
        reason,
        {"field": "tokens"},
        0.25,
    )
    assert str(error) == f"{reason}: no"


def test_a_call_that_came_too_late_was_not_answered_in_time() -> None:
    """A call that the store refuses because its deadline passed is a timeout."""
    details = refusal("INVALID_FIELD", field="deadline", value="passed")
    error = errors.error_of_status(status_pb2.Status.FromString(details))
    assert type(error) is errors.StoreTimedOut


def test_a_reason_of_a_later_version_is_a_refusal() -> None:
    """An unknown reason of a later version keeps its name in the general class."""
    error = errors.error_of_status(status_pb2.Status.FromString(refusal("NEW_REASON")))
    assert type(error) is errors.StoreRefused
    assert (error.reason, error.retry_after_s) == ("NEW_REASON", None)


def test_a_status_of_somebody_else_is_no_answer() -> None:
    """A status without the store's domain counts as no answer."""
    error = errors.error_of_status(status_pb2.Status(code=14, message="proxy"))
    assert type(error) is errors.StoreUnavailable
    assert str(error) == "proxy"


def test_a_refused_call_raises_its_class(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> None:
    """A refused call raises the class of its details."""
    scripted.answer("GetStats", refusal("POOL_EXHAUSTED", requested="7"))
    error = error_of_call(runtime_dir)
    assert isinstance(error, errors.PoolExhausted)
    assert error.metadata == {"requested": "7"}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.StoreTimedOut),
        (grpc.StatusCode.UNIMPLEMENTED, errors.FeatureUnsupported),
        (grpc.StatusCode.UNAVAILABLE, errors.StoreUnavailable),
        (grpc.StatusCode.UNKNOWN, errors.StoreUnavailable),
    ],
)
def test_a_status_without_details_is_told_by_its_code(
    scripted: ScriptedCalls,
    runtime_dir: RuntimeDir,
    code: grpc.StatusCode,
    kind: type[errors.StoreError],
) -> None:
    """A gRPC status without details becomes a timeout, a missing feature or no answer."""
    scripted.answer("GetStats", code)
    assert type(error_of_call(runtime_dir)) is kind


def test_details_that_are_none_are_ignored(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """Unreadable details are ignored, and the call's code counts."""
    scripted.answer("GetStats", b"\xff\xff")
    assert type(error_of_call(runtime_dir)) is errors.StoreUnavailable


def test_a_fork_is_no_miss() -> None:
    """Code that treats StoreError as a miss does not catch ForkedClient."""
    assert not issubclass(errors.ForkedClient, errors.StoreError)
