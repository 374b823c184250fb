"""Errors of storage."""

import pytest

from kvstore.storage.errors import BudgetExhausted, NotEnoughMemory, StorageError


@pytest.mark.parametrize("kind", [BudgetExhausted, NotEnoughMemory])
def test_an_error_names_both_numbers(kind: type[StorageError]) -> None:
    """The error has the wanted and the available bytes, in its message and as numbers."""
    error = kind("no", requested_bytes=7, available_bytes=3)
    assert str(error) == "no: 7 bytes wanted, 3 available"
    assert (error.requested_bytes, error.available_bytes) == (7, 3)
