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
KERNELS_NEED = "tests/kernels/requirements.txt"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the Makefile looks at, and no environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / KERNELS_NEED).parent.mkdir(parents=True)
    shutil.copy(ROOT / KERNELS_NEED, tmp_path / KERNELS_NEED)
    (tmp_path / ".venv").mkdir()
    return tmp_path


def said(clone: Path, *arguments: str) -> str:
    """Returns the commands that make would run."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    result = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def set_up(clone: Path, *arguments: str) -> list[str]:
    """Returns the extras of each installation that make would run."""
    return re.findall(r"--editable '\.\[(.*)\]'", said(clone, *arguments))


@pytest.mark.parametrize(
    "target",
    [
        *(
            "venv",
            "test",
            "test-fast",
            "test-benchmarks",
            "test-engines",
            "test-routers",
            "docs",
            "lint",
        ),
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
        ((TINY,), (), ["server,worker,valkey"]),
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
    """The standard library and pip pack the bundle."""
    assert set_up(clone, target) == []


def test_clean_removes_what_is_made(clone: Path) -> None:
    """It removes each folder at the root that git ignores, and nothing else."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = {line.strip("/") for line in ignored if line.startswith("/") and "*" not in line}
    for name in folders:
        (clone / name).mkdir(exist_ok=True)
    subprocess.run(["make", "clean"], cwd=clone, check=True)
    assert sorted(path.name for path in clone.iterdir()) == [
        *("Makefile", "constraints.txt", "pyproject.toml", "tests"),
    ]


def test_what_changed_is_set_up_again(clone: Path) -> None:
    """As whole as it was."""
    (clone / ".venv" / ".installed").touch()
    os.utime(clone / ".venv" / ".installed", (0, 0))
    assert set_up(clone, "demo") == [ALL]


def test_kernels_have_an_environment_of_their_own(clone: Path) -> None:
    """Only that environment has Triton; a change of its pin sets it up again."""
    commands = said(clone, "kernels")
    assert set_up(clone, "kernels") == ["worker,cuda,kernels"]
    installed = (
        f"&& .venv-kernels/bin/python -m pip install [^&]*--no-deps --requirement {KERNELS_NEED}"
    )
    assert len(re.findall(installed, commands)) == 1
    assert ".venv/" not in commands
    assert KERNELS_NEED not in said(clone, "test")
    stamp = clone / ".venv-kernels" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    assert set_up(clone, "kernels") == []
    os.utime(clone / KERNELS_NEED, (2**31, 2**31))
    assert set_up(clone, "kernels") == ["worker,cuda,kernels"]


def test_clean_removes_every_environment() -> None:
    """`make clean` removes each environment that git ignores."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    environments = {line.strip("/") for line in ignored if line.startswith("/.venv")}
    assert ".venv-kernels" in environments
    assert environments <= set(said(ROOT, "clean").split())
