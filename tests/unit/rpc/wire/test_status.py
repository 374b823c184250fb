"""Errors on the wire."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from kvstore import errors
from kvstore.rpc.wire import status
from kvstore.v1 import errors_pb2

CONTRACT = Path(__file__).parents[4] / "proto" / "kvstore" / "v1" / "errors.proto"
NAMES = list(errors_pb2.ErrorReason.DESCRIPTOR.values_by_name)
# A reason that nothing raises: to end a named pin that is not there succeeds.
NOT_RAISED = {"NAMED_PIN_NOT_FOUND"}


def raisable(base: type[errors.KVStoreError] = errors.KVStoreError) -> Iterator[type]:
    """Yields every class of kvstore.errors below ``base``."""
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from raisable(each)


def reasons_of_contract() -> dict[str, str]:
    """Returns the status code that begins the comment of each reason in the contract."""
    text = CONTRACT.read_text(encoding="utf-8")
    found = re.findall(r"// ([A-Z_]+)[.,][^;]*?ERROR_REASON_([A-Z_]+) = \d+;", text)
    return {reason: code for code, reason in found}


def details_of(sent: status_pb2.Status, kind: type) -> list[object]:
    """Returns the details of one type in a status, unpacked."""
    unpacked = []
    for detail in sent.details:
        message = kind()
        if detail.Unpack(message):
            unpacked.append(message)
    return unpacked


def test_every_error_has_a_code() -> None:
    """The table of codes has exactly the error classes of kvstore.errors."""
    assert set(status.CODES) == set(raisable())


def test_every_reason_of_the_contract_has_a_class() -> None:
    """Each ErrorReason has a class, except for INTERNAL and those that no call answers."""
    reasons = {
        name.removeprefix(status.REASON_PREFIX)
        for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    }
    raised = {each.reason() for each in status.CODES}
    assert raised | NOT_RAISED | {"INTERNAL", "UNSPECIFIED"} == reasons
    assert raised & NOT_RAISED == set()


def test_codes_are_the_contract_s() -> None:
    """An error's code is the one in the contract's comment on its reason."""
    contract = reasons_of_contract()
    assert len(contract) == len(NAMES) - 1
    assert {each.reason(): code.name for each, code in status.CODES.items()} == {
        reason: code for reason, code in contract.items() if reason not in {*NOT_RAISED, "INTERNAL"}
    }
    assert contract["INTERNAL"] == grpc.StatusCode.INTERNAL.name


@pytest.mark.parametrize("kind", status.CODES, ids=lambda kind: kind.__name__)
def test_a_status_has_exactly_one_error_info(kind: type[errors.KVStoreError]) -> None:
    """A status has its code, its message, one ErrorInfo, and a RetryInfo if a retry may help."""
    error = kind(field="tokens", value=7)
    sent = status.to_status(error)
    assert sent.code == status.CODES[kind].value[0]
    assert sent.message == str(error)
    info = error_details_pb2.ErrorInfo(
        reason=kind.reason(), domain="kvstore", metadata={"field": "tokens", "value": "7"}
    )
    assert details_of(sent, error_details_pb2.ErrorInfo) == [info]
    retries = details_of(sent, error_details_pb2.RetryInfo)
    assert len(retries) == (kind.retry_after_s is not None)
    assert len(sent.details) == 1 + len(retries)


@pytest.mark.parametrize("kind", [errors.PoolExhausted, errors.StoreDraining])
def test_a_retry_s_delay_is_the_error_s(kind: type[errors.KVStoreError]) -> None:
    """RetryInfo has the delay of the error."""
    (retry,) = details_of(status.to_status(kind()), error_details_pb2.RetryInfo)
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == kind.retry_after_s


def test_a_narrower_error_goes_as_its_listed_class() -> None:
    """A subclass of a listed error has the reason and code of the listed class."""

    class NarrowerField(errors.InvalidField):
        pass

    assert status.to_status(NarrowerField(field="x")) == status.to_status(
        errors.InvalidField(field="x")
    )


def test_a_status_fits_into_headers() -> None:
    """Long values are cut, so that a status stays below gRPC's limit of 8 KiB."""
    error = errors.LayoutMismatch(field="content", cached="x" * 100_000, requested="y" * 100_000)
    assert status.to_status(error).ByteSize() < 4096


def test_a_bug_names_its_request_and_nothing_of_itself() -> None:
    """INTERNAL carries the request id and nothing else. The log has the rest under that id."""
    sent = status.internal_status("0f")
    (info,) = details_of(sent, error_details_pb2.ErrorInfo)
    assert info == error_details_pb2.ErrorInfo(
        reason="INTERNAL", domain="kvstore", metadata={"request_id": "0f"}
    )
    assert sent.code == grpc.StatusCode.INTERNAL.value[0]
