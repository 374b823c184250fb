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

CONTRACT = Path(__file__).parents[3] / "proto" / "kvstore" / "v1" / "errors.proto"
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
    """Returns the status code that the comment of each reason begins with."""
    text = CONTRACT.read_text(encoding="utf-8")
    found = re.findall(r"// ([A-Z_]+)[.,][^;]*?ERROR_REASON_([A-Z_]+) = \d+;", text)
    return {reason: code for code, reason in found}


def details_of(sent: status_pb2.Status, kind: type) -> list[object]:
    """Returns a status's details of one type, unpacked."""
    unpacked = []
    for detail in sent.details:
        message = kind()
        if detail.Unpack(message):
            unpacked.append(message)
    return unpacked


def test_every_error_has_a_code() -> None:
    """Each class of kvstore.errors stands in the table, and nothing else does."""
    assert set(status.CODES) == set(raisable())


def test_every_reason_of_the_contract_has_a_class() -> None:
    """Each ErrorReason is a class's, or INTERNAL, or one that no call answers."""
    reasons = {
        name.removeprefix(status.REASON_PREFIX)
        for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    }
    raised = {each.reason() for each in status.CODES}
    assert raised | NOT_RAISED | {"INTERNAL", "UNSPECIFIED"} == reasons
    assert raised & NOT_RAISED == set()


def test_codes_are_the_contract_s() -> None:
    """The code of each error is the one that the contract's comment on its reason names."""
    contract = reasons_of_contract()
    assert len(contract) == len(NAMES) - 1
    assert {each.reason(): code.name for each, code in status.CODES.items()} == {
        reason: code for reason, code in contract.items() if reason not in {*NOT_RAISED, "INTERNAL"}
    }
    assert contract["INTERNAL"] == grpc.StatusCode.INTERNAL.name


@pytest.mark.parametrize("kind", status.CODES, ids=lambda kind: kind.__name__)
def test_a_status_has_exactly_one_error_info(kind: type[errors.KVStoreError]) -> None:
    """A status has code, message, one ErrorInfo with the metadata, and RetryInfo where due."""
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
    """RetryInfo says how long the error says to wait."""
    (retry,) = details_of(status.to_status(kind()), error_details_pb2.RetryInfo)
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == kind.retry_after_s


def test_a_narrower_error_goes_as_its_listed_class() -> None:
    """A subclass made for one place has the reason and code of the class in the table."""

    class NarrowerField(errors.InvalidField):
        pass

    assert status.to_status(NarrowerField(field="x")) == status.to_status(
        errors.InvalidField(field="x")
    )


def test_a_status_fits_into_headers() -> None:
    """Values of any length come cut, so that the status stays below gRPC's 8 KiB."""
    error = errors.LayoutMismatch(field="content", cached="x" * 100_000, requested="y" * 100_000)
    assert status.to_status(error).ByteSize() < 4096


def test_a_bug_names_its_request_and_nothing_of_itself() -> None:
    """INTERNAL carries the request id, under which the log has the rest."""
    sent = status.internal_status("0f")
    (info,) = details_of(sent, error_details_pb2.ErrorInfo)
    assert info == error_details_pb2.ErrorInfo(
        reason="INTERNAL", domain="kvstore", metadata={"request_id": "0f"}
    )
    assert sent.code == grpc.StatusCode.INTERNAL.value[0]
