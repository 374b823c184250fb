"""On a fresh clone each target of the Makefile sets up what it needs, and the demo no more."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALL = "server,worker,demo,dev"
TINY = "ARGS=--model tiny"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the Makefile looks at, and no environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def set_up(clone: Path, *arguments: str) -> list[str]:
    """Return the extras of each installation that make would do."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    said = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"--editable '\.\[(.*)\]'", said.stdout)


@pytest.mark.parametrize(
    "target",
    [
        *("venv", "test", "test-fast", "docs", "lint"),
        *("bench", "bench-peers", "dist", "dist-test"),
    ],
)
def test_a_target_has_all_tools(clone: Path, target: str) -> None:
    """Also where a demo ran before; nothing is set up twice."""
    assert set_up(clone, target) == [ALL]
    (clone / ".venv" / ".installed-demo").touch()
    assert set_up(clone, target) == [ALL]
    (clone / ".venv" / ".installed").touch()
    assert set_up(clone, target) == []


@pytest.mark.parametrize(
    ("arguments", "there", "extras"),
    [
        ((), (), ["server,worker,demo"]),
        (("ARGS=--json",), (), ["server,worker,demo"]),
        (("ARGS=--model gemma",), (), ["server,worker,demo"]),
        ((TINY,), (), ["server,worker"]),
        ((TINY,), (".installed-tiny",), []),
        ((), (".installed-tiny",), ["server,worker,demo"]),
        ((TINY,), (".installed-demo",), []),
        ((TINY,), (".installed",), []),
        ((), (".installed",), []),
    ],
)
def test_a_demo_has_no_more_than_it_needs(
    clone: Path, arguments: tuple[str, ...], there: tuple[str, ...], extras: list[str]
) -> None:
    """Gemma only where it is asked for, and what is there is enough."""
    for name in there:
        (clone / ".venv" / name).touch()
    assert set_up(clone, "demo", *arguments) == extras


@pytest.mark.parametrize("target", ["gpu-bundle", "gpu-dry-run"])
def test_a_bundle_needs_no_environment(clone: Path, target: str) -> None:
    """What travels to a GPU machine is packed by the standard library and pip."""
    assert set_up(clone, target) == []


def test_clean_removes_what_is_made(clone: Path) -> None:
    """Each folder at the root that git ignores, and nothing that it does not."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = {line.strip("/") for line in ignored if line.startswith("/") and "*" not in line}
    for name in folders:
        (clone / name).mkdir(exist_ok=True)
    subprocess.run(["make", "clean"], cwd=clone, check=True)
    assert sorted(path.name for path in clone.iterdir()) == [
        *("Makefile", "constraints.txt", "pyproject.toml"),
    ]


def test_what_changed_is_set_up_again(clone: Path) -> None:
    """As whole as it was."""
    (clone / ".venv" / ".installed").touch()
    os.utime(clone / ".venv" / ".installed", (0, 0))
    assert set_up(clone, "demo") == [ALL]
