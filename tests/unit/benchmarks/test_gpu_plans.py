"""The four scripts of a GPU run, and the bundle."""

import gzip
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpu_machine import bundle
from gpu_machine.plans import MINUTES, PLANS, Place, again
from gpu_machine.probes.__main__ import ON_THE_DEVICE, ON_THE_HOST
from gpu_machine.steps import Stage, Step

ROOT = Path(__file__).parents[3]
# Limits of a lender of GPU machines: the size of returned files, and the minutes of a command.
MOST_FILES = 8
MOST_MINUTES = 10


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """This checkout, without earlier results."""
    return Place(checkout=ROOT, work=tmp_path / "work", earlier=tmp_path / "earlier")


def steps(stages: list[Stage]) -> list[Step]:
    """Returns all steps of a script."""
    return [step for stage in stages for lane in stage.lanes for step in lane]


def earlier(place: Place, *lines: dict[str, Any]) -> Place:
    """Writes results of an earlier script."""
    place.earlier.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place.earlier / "look.jsonl").write_text(text + '{"kind": "te', encoding="utf-8")
    return place


@pytest.mark.parametrize("script", PLANS)
def test_a_script_fits_into_one_command(place: Place, script: str) -> None:
    """A script's steps have distinct names, fit into a command's time, and return their files."""
    found = steps(PLANS[script](place))
    names = [step.name for step in found]
    assert len(set(names)) == len(names)
    # The records, the log and Triton's cache are returned beside them.
    assert len([step for step in found if step.output]) + 3 <= MOST_FILES
    assert MINUTES[script] < MOST_MINUTES


def test_every_probe_and_every_test_is_run_once(place: Place) -> None:
    """The scripts look and prove together run every probe and every file of tests/gpu."""
    found = steps([*PLANS["look"](place), *PLANS["prove"](place)])
    assert {f"probe {name}" for name in ON_THE_DEVICE} <= {step.name for step in found}
    assert {*ON_THE_HOST} <= {step.name for step in found}
    files = [each for step in found for each in step.command if each.startswith("tests/gpu/")]
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert set(files) == there
    # Attention is compiled in three processes.
    assert len(files) == len(there) + 2


def test_again_repeats_what_failed(place: Place) -> None:
    """The script repeats failed and unfinished tests by id, and probes without an answer."""
    earlier(
        place,
        {"kind": "test", "test": "tests/gpu/test_a.py::test_x[a b]", "outcome": "started"},
        {"kind": "test", "test": "tests/gpu/test_a.py::test_x[a b]", "outcome": "failed"},
        {"kind": "test", "test": "tests/gpu/test_a.py::test_y", "outcome": "started"},
        {"kind": "test", "test": "tests/gpu/test_a.py::test_z", "outcome": "started"},
        {"kind": "test", "test": "tests/gpu/test_a.py::test_z", "outcome": "passed"},
        {"kind": "step", "step": "probe mapped", "verdict": "timed out"},
        {"kind": "step", "step": "probe killed", "verdict": "no"},
        {"kind": "step", "step": "test_device", "verdict": "failed"},
    )
    found = {step.name: step for step in steps(again(place))}
    assert set(found) == {"probe mapped", "tests again", "gpu --json"}
    ids = [each for each in found["tests again"].command if "::" in each]
    assert ids == ["tests/gpu/test_a.py::test_x[a b]", "tests/gpu/test_a.py::test_y"]


def test_again_runs_everything_if_nothing_is_known(place: Place) -> None:
    """The script runs everything if the earlier results were lost."""
    found = {step.name: step for step in steps(again(place))}
    assert found["tests again"].command[-1] == "tests/gpu"


def test_again_measures_if_nothing_failed(place: Place) -> None:
    """The script repeats no test if none failed."""
    earlier(place, {"kind": "test", "test": "tests/gpu/test_a.py::test_x", "outcome": "passed"})
    assert [step.name for step in steps(again(place))] == ["gpu --json"]


@pytest.mark.parametrize(
    ("name", "wanted", "python", "expected"),
    [
        ("xxhash-4.1.0-cp312-cp312-manylinux2014_x86_64", "xxhash", "3.12", True),
        ("xxhash-4.1.0-cp311-cp311-manylinux2014_x86_64", "xxhash", "3.12", False),
        ("xxhash-4.0.0-cp312-cp312-manylinux2014_x86_64", "xxhash", "3.12", False),
        ("xxhash-4.1.0-cp310-abi3-manylinux2014_x86_64", "xxhash", "3.12", True),
        ("xxhash-4.1.0-py3-none-any", "xxhash", "3.13", True),
        ("xxhash-4.1.0-py2.py3-none-any", "xxhash", "3.11", True),
        ("python_dotenv-4.1.0-py3-none-any", "python-dotenv", "3.12", True),
    ],
)
def test_a_wheel_that_fits_is_not_downloaded_again(
    name: str, wanted: str, python: str, *, expected: bool
) -> None:
    """A wheel fits if it has the version and is for the machine's Python."""
    assert bundle.fits(Path(f"{name}.whl"), wanted, "4.1.0", python) is expected


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout of git")
def test_what_is_packed_is_what_is_tracked(tmp_path: Path) -> None:
    """The bundle has the tracked files, none that git ignores, and the same bytes each time."""
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    bundle.pack(one)
    bundle.pack(two)
    with tarfile.open(one) as archive:
        names = set(archive.getnames())
    assert {"Makefile", "benchmarks/gpu_machine/run.py", "tests/gpu/test_device.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "gpu-bundle", ".git/"))]
    assert _content(one) == _content(two)


def test_too_large_a_bundle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program prints the size and ends with status 1. The scripts are executable."""
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["bundle.py", "--out", str(out)])
    monkeypatch.setattr(bundle, "fetch", lambda *_: [])
    monkeypatch.setattr(bundle, "pack", lambda path: path.write_bytes(b"") and 0)
    monkeypatch.setattr(bundle, "git", lambda *_: "0123456789abcdef")
    assert bundle.main() == 0
    for script in PLANS:
        assert os.access(out / script, os.X_OK)
    monkeypatch.setattr(bundle, "MOST_BYTES", 100)
    assert bundle.main() == 1
    assert "too large" in capsys.readouterr().out


def _content(path: Path) -> bytes:
    """Returns the uncompressed content, without the file name that gzip records."""
    return gzip.decompress(path.read_bytes())
