"""The test store: failing starts, other programs, and waiting."""

from pathlib import Path

import pytest

from kvstore_client.testing import RunningStore, running_store, wait_until


def test_a_store_that_does_not_start_says_why() -> None:
    """A store that ends before it serves raises an error with its output."""
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
    """A store that was not started has no pid, no log and nothing to stop."""
    store = RunningStore(tmp_path / "run")
    with pytest.raises(RuntimeError, match="not started"):
        _ = store.pid
    assert (store.stop(), store.log) == (0, "")


def test_waiting_for_what_never_comes_ends() -> None:
    """Waiting for a condition returns whether it became true in time."""
    looks = iter(range(100))
    assert wait_until(lambda: next(looks) == 3)
    assert not wait_until(lambda: False, timeout=0.05)
