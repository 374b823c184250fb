"""The committed stubs are what proto/generate.py writes today."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def contents(package: Path) -> dict[str, str]:
    """Return the text of a package's files, by name."""
    return {
        path.name: path.read_text(encoding="utf-8") for path in package.iterdir() if path.is_file()
    }


def test_the_stubs_are_in_step_with_the_contract(tmp_path: Path) -> None:
    """Generating again changes no file of kvstore/v1, adds none and leaves none over."""
    command = [sys.executable, str(ROOT / "proto" / "generate.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    committed, fresh = contents(ROOT / "kvstore" / "v1"), contents(tmp_path / "kvstore" / "v1")
    assert sorted(committed) == sorted(fresh)
    assert [name for name in fresh if committed[name] != fresh[name]] == []
