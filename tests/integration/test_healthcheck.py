"""The health check of the store's container."""

import os
import subprocess
import sys
from pathlib import Path

from kvstore_client.testing import running_store

SCRIPT = Path(__file__).parents[2] / "deploy" / "healthcheck.py"


def check(runtime_dir: Path) -> tuple[int, str]:
    """Runs the check. Returns its exit status and the last word of its output."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "KVSTORE_RUNTIME_DIR": str(runtime_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    return result.returncode, result.stdout.split()[-1]


def test_only_a_store_that_serves_is_healthy(tmp_path: Path) -> None:
    """The check's status is 0 while the store serves, and 1 while it hangs or is absent."""
    with running_store() as store:
        assert check(store.runtime_dir) == (0, "SERVING")
        store.suspend()
        assert check(store.runtime_dir) == (1, "DEADLINE_EXCEEDED")
        store.resume()
    assert check(tmp_path) == (1, "UNAVAILABLE")
