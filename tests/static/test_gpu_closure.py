"""All imports of a run on a GPU are on the machine, or travel there as wheels."""

import ast
import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from gpu_machine.bundle import HERE, canonical, names, pins
from gpu_machine.closure import PATHS

ROOT = Path(__file__).parents[2]
CLOSURE = ROOT / "benchmarks" / "gpu_machine" / "closure.py"
PATIENCE = 200.0
# Environments without a GPU lack these: machine.txt has them.
ON_THE_MACHINE_ALONE = {"cupy", "triton"}
# Only for `--model gemma`, and for traces.
NEVER_IMPORTED_THERE = {"gguf", "opentelemetry"}


def needs(name: str) -> set[str]:
    """Returns the distributions that one needs here without extras; none if it is not installed."""
    try:
        lines = requires(name) or []
    except ModuleNotFoundError:
        return set()
    environment: dict[str, str] = {**default_environment(), "extra": ""}  # type: ignore[dict-item]
    found = [Requirement(line) for line in lines]
    return {
        canonical(each.name)
        for each in found
        if each.marker is None or each.marker.evaluate(environment)
    }


def on_the_machine() -> set[str]:
    """Returns the distributions of machine.txt and all that these need."""
    found: set[str] = set()
    new = {canonical(name) for name in names(HERE / "machine.txt")}
    while new:
        found |= new
        new = set().union(*(needs(name) for name in new)) - found
    return found


def importable(distributions: set[str]) -> set[str]:
    """Returns the top-level names of some distributions of this environment."""
    return {
        name
        for name, sources in packages_distributions().items()
        if {canonical(source) for source in sources} & distributions
    }


def closure(allowed: set[str], folder: Path) -> dict[str, Any]:
    """Imports the closure in a process that can import these names; returns its answer."""
    only = folder / "names"
    only.write_text("\n".join(sorted(allowed)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(CLOSURE), "--only", str(only)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode == 1) is bool(said["missing"])
    return said


def imports(path: Path) -> set[str]:
    """Returns the top-level names that a file imports anywhere, in its functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_a_run_on_a_gpu_imports_what_is_there(tmp_path: Path) -> None:
    """A run imports nothing else: the machine has no network, so a missing package ends the run."""
    wheels = {canonical(name) for name in names(HERE / "wheels.txt")}
    machine = on_the_machine()
    said = closure(importable(machine | wheels), tmp_path)
    assert said["missing"] == {}
    named = {name for each in said["files"] for name in imports(ROOT / each)}
    # A late import, in a function, is needed too.
    there = importable(machine | wheels) | sys.stdlib_module_names | ON_THE_MACHINE_ALONE
    ours = {path.stem for each in PATHS for path in (ROOT / each).iterdir()}
    assert named - there - ours == NEVER_IMPORTED_THERE


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    """With torch alone, each program lacks the first package that it imports."""
    missing = closure({"torch"}, tmp_path)["missing"]
    assert "structlog" in missing["kvstore.__main__"]
    assert "typer" in missing["inference_worker.commands.program"]


def test_each_wheel_has_one_version() -> None:
    """constraints.txt pins it, and the list names it once."""
    wheels = [canonical(name) for name in names(HERE / "wheels.txt")]
    assert sorted(set(wheels)) == sorted(wheels)
    assert [name for name in wheels if name not in pins()] == []


@pytest.mark.parametrize("name", ["grpcio", "protobuf"])
def test_the_generated_code_s_needs_travel(name: str) -> None:
    """The machine's versions are older than the generated code, which refuses them."""
    assert name in {canonical(each) for each in names(HERE / "wheels.txt")}


def test_the_page_says_what_is_taken_for_granted() -> None:
    """docs/gpu.md names each distribution that a GPU machine is assumed to have."""
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    section = page.split("## The first run on a GPU", 1)[1]
    assert re.search(r"\[machine\.txt\]\([^)]*benchmarks/gpu_machine/machine\.txt\)", section)
