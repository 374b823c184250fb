"""The errors that the store raises at a caller."""

import inspect
import re

import pytest

from kvstore import errors
from kvstore.errors import InvalidField, KVStoreError, PoolExhausted

KINDS = sorted(KVStoreError.__subclasses__(), key=lambda kind: kind.__name__)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The tree in the module's docstring has each error once and nothing else."""
    drawn = re.findall(r"[├└]── (\w+)", inspect.getdoc(errors) or "")
    assert sorted(drawn) == [kind.__name__ for kind in KINDS]


def test_every_error_is_one_level_deep() -> None:
    """Every error derives directly from KVStoreError."""
    assert all(kind.__bases__ == (KVStoreError,) for kind in KINDS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (errors.InvalidField, "INVALID_FIELD"),
        (errors.PoolExhausted, "POOL_EXHAUSTED"),
        (errors.Tombstoned, "TOMBSTONED"),
        (errors.InsertExceedsReservation, "INSERT_EXCEEDS_RESERVATION"),
        (errors.IdReused, "ID_REUSED"),
    ],
)
def test_a_reason_is_the_classes_name(kind: type[KVStoreError], reason: str) -> None:
    """The reason on the wire is the class's name in upper snake case."""
    assert kind.reason() == reason


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_told_apart(kind: type[KVStoreError]) -> None:
    """Each error has its own reason and message, and a docstring."""
    others = [each for each in KINDS if each is not kind]
    assert kind.reason() not in {each.reason() for each in others}
    assert kind.message not in {KVStoreError.message, *(each.message for each in others)}
    assert inspect.getdoc(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_messages_end_without_a_stop(kind: type[KVStoreError]) -> None:
    """A message has no final stop or newline, because details follow it."""
    assert kind.message == kind.message.strip().rstrip(".")
    assert "\n" not in kind.message


def test_an_error_names_its_values() -> None:
    """An error's values are in its message and, as strings, in its metadata."""
    error = InvalidField(field="tokens", value=7)
    assert error.metadata == {"field": "tokens", "value": "7"}
    assert str(error) == "a field is not valid (field=tokens, value=7)"


def test_an_error_needs_no_values() -> None:
    """An error without values has its plain message."""
    error = PoolExhausted()
    assert error.metadata == {}
    assert str(error) == PoolExhausted.message


def test_only_what_may_succeed_later_says_when_to_retry() -> None:
    """Only POOL_EXHAUSTED and STORE_DRAINING have a retry delay."""
    retried = {kind: kind.retry_after_s for kind in KINDS if kind.retry_after_s is not None}
    assert set(retried) == {errors.PoolExhausted, errors.StoreDraining}
    assert all(seconds > 0 for seconds in retried.values())
