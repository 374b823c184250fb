"""Single fields of a request."""

import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core.values.limits import Limits
from kvstore.errors import InvalidField, LimitExceeded
from kvstore.rpc.wire import fields

LIMITS = Limits(max_tokens=8, max_batch_size=2)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_random_id_has_sixteen_bytes(length: int) -> None:
    """An id of another length than 16 bytes is refused, and its bytes are not repeated."""
    assert fields.random_id("lease_id", bytes(16)) == bytes(16)
    with pytest.raises(InvalidField) as caught:
        fields.random_id("lease_id", bytes(length))
    assert caught.value.metadata["value"] == f"{length} bytes"


@pytest.mark.parametrize("length", [1, 6])
def test_bytes_have_bounds(length: int) -> None:
    """Bytes within the given lengths are accepted, all others are refused."""
    for taken in (2, 5):
        assert fields.checked_bytes("salt", bytes(taken), least=2, most=5) == bytes(taken)
    with pytest.raises(InvalidField):
        fields.checked_bytes("salt", bytes(length), least=2, most=5)


def test_zero_is_an_id_that_was_forgotten() -> None:
    """An id of zero is refused, because an unset field is also zero."""
    with pytest.raises(InvalidField):
        fields.missing_id("pin_id")


def test_a_name_is_bounded_in_bytes() -> None:
    """A name may be empty, and has at most 256 bytes of UTF-8."""
    assert fields.name("display_name", "", Limits()) == ""
    assert fields.name("display_name", "é" * 128, Limits()) == "é" * 128
    with pytest.raises(InvalidField):
        fields.name("display_name", "é" * 129, Limits())


@pytest.mark.parametrize("value", ["a\x1b[2J", "a\nb", "a\x7f", "\u202ea", "\x00"])
def test_a_name_is_for_people(value: str) -> None:
    """A name must be printable, because it goes to operators' terminals and logs."""
    with pytest.raises(InvalidField) as caught:
        fields.name("display_name", value, Limits())
    assert caught.value.metadata == {"field": "display_name", "why": "not printable"}


def test_a_chosen_name_is_not_empty() -> None:
    """An empty name is refused if the client has to choose it."""
    assert fields.chosen_name("name", "p", Limits()) == "p"
    for value in ("", "é" * 129):
        with pytest.raises(InvalidField) as caught:
            fields.chosen_name("name", value, Limits())
        assert caught.value.metadata["field"] == "name"


@pytest.mark.parametrize(
    ("whole", "nanos"), [(-1, 0), (0, -1), (0, 1_000_000_000), (fields.MAX_SECONDS, 0)]
)
def test_a_span_of_time_is_not_negative(whole: int, nanos: int) -> None:
    """A duration is read in seconds. Negative, malformed and infinite ones are refused."""
    assert fields.seconds("ttl", Duration(seconds=2, nanos=500_000_000)) == 2.5
    assert fields.seconds("ttl", Duration()) == 0
    with pytest.raises(InvalidField):
        fields.seconds("ttl", Duration(seconds=whole, nanos=nanos))


def test_a_batch_is_bounded() -> None:
    """A batch at the limit is accepted, and one with one more is refused."""
    fields.require_batch([1, 2], LIMITS)
    with pytest.raises(LimitExceeded):
        fields.require_batch([1, 2, 3], LIMITS)
