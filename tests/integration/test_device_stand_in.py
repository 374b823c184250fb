"""Stores and workers on a device of which files take the place: all but CUDA itself is real."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from device_scenarios import (
    SCENARIOS,
    a_view_outlives_its_store,
    memory_goes_with_its_last_user,
)

SUPPORT = Path(__file__).parents[1] / "support"
MIB = 1 << 20

pytestmark = pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every process that is started a cupy whose device is a folder."""
    folders = [str(SUPPORT / "shared_card"), str(SUPPORT)]
    monkeypatch.setenv("KVSTORE_TEST_CARD", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, *sys.path]))
    monkeypatch.syspath_prepend(folders[0])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_device_pages(scenario: Callable[[str], None]) -> None:
    """What has to hold on a device holds in all of our code beneath which CUDA lies."""
    scenario("cpu")


def test_a_successor_s_equal_handle_is_not_taken_for_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a store's handles are those of the store before, a view that is kept delays them."""
    monkeypatch.setenv("KVSTORE_TEST_CARD_PREFIX", "store")
    a_view_outlives_its_store("cpu")


def test_memory_goes_with_its_last_user() -> None:
    """The extent of a dead store is there until the last worker that maps it lets go."""
    memory_goes_with_its_last_user(16 * MIB, 0)
