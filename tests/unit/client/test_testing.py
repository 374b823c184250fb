"""The store for tests: what becomes of one that does not start."""

from pathlib import Path

import pytest

from kvstore_client.testing import RunningStore, running_store, wait_until


def test_a_store_that_does_not_start_says_why() -> None:
    """A process that ends before it serves is an error with what it said."""
    with (
        pytest.raises(RuntimeError, match=r"status 2(.|\n)*--nonsense"),
        running_store("--nonsense"),
    ):
        pass


def test_another_program_is_given_the_same_command_line(tmp_path: Path) -> None:
    """Another program in the server's place gets the folder and the caller's arguments."""
    program = ("-c", "import sys; sys.exit(' '.join(sys.argv[1:]))")
    folder = tmp_path / "run"
    with (
        pytest.raises(RuntimeError, match=f"--runtime-dir {folder} --odd --drain-grace 1"),
        running_store("--odd", runtime_dir=folder, program=program),
    ):
        pass


def test_a_store_that_was_not_started_has_no_process(tmp_path: Path) -> None:
    """Before its start a store has no pid, nothing to stop and no log."""
    store = RunningStore(tmp_path / "run")
    with pytest.raises(RuntimeError, match="not started"):
        _ = store.pid
    assert (store.stop(), store.log) == (0, "")


def test_waiting_for_what_never_comes_ends() -> None:
    """A condition that does not hold in time is told by the result."""
    looks = iter(range(100))
    assert wait_until(lambda: next(looks) == 3)
    assert not wait_until(lambda: False, timeout=0.05)
