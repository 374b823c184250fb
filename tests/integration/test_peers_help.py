"""The setup scripts of peer environments explain themselves before they install anything."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.mark.parametrize("script", sorted(each.name for each in PEERS.glob("*_environment.py")))
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_installs_nothing(tmp_path: Path, script: str, flag: str) -> None:
    """--help installs nothing and leaves its folder as it is."""
    tree = tmp_path / "benchmarks" / "peers"
    shutil.copytree(PEERS, tree, ignore=shutil.ignore_patterns("__pycache__"))
    result = subprocess.run(
        [sys.executable, str(tree / script), flag],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: {script} [OPTION OF PIP ...]")
    assert [each.name for each in tmp_path.iterdir()] == ["benchmarks"]
