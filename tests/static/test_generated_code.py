"""Generated files are committed as their scripts write them today."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def contents(package: Path) -> dict[str, str]:
    """Returns the text of a package's files, by name."""
    return {
        path.name: path.read_text(encoding="utf-8") for path in package.iterdir() if path.is_file()
    }


def run(script: str, out: Path) -> None:
    """Runs a script of the tree that writes generated files, into another place."""
    subprocess.run([sys.executable, str(ROOT / script), "--out", str(out)], check=True)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with what proto/generate.py writes today."""
    out = tmp_path_factory.mktemp("generated")
    run("proto/generate.py", out)
    return out


def test_the_stubs_are_in_step_with_the_contract(generated: Path) -> None:
    """Generating again changes no file of kvstore/v1, adds none and leaves none over."""
    committed, fresh = contents(ROOT / "kvstore" / "v1"), contents(generated / "kvstore" / "v1")
    assert sorted(committed) == sorted(fresh)
    assert [name for name in fresh if committed[name] != fresh[name]] == []


def test_the_protocol_s_page_is_in_step_with_the_contract(generated: Path) -> None:
    """docs/protocol.md is what proto/generate.py makes of the contract's comments."""
    page = Path("docs", "protocol.md")
    assert (ROOT / page).read_text(encoding="utf-8") == (generated / page).read_text(
        encoding="utf-8"
    ), "run proto/generate.py"


@pytest.mark.parametrize(
    ("written", "script"),
    [
        ("docs/configuration.md", "docs/settings.py"),
        ("docs/metrics.md", "docs/metrics.py"),
        ("docs/permissions.md", "docs/permissions.py"),
        ("docs/errors.md", "docs/errors.py"),
        ("deploy/grafana/kvstore.json", "deploy/grafana/dashboard.py"),
    ],
)
def test_a_generated_file_is_in_step_with_its_script(
    tmp_path: Path, written: str, script: str
) -> None:
    """The committed file is what its script writes of settings, definitions, tables or panels."""
    out = tmp_path / Path(written).name
    run(script, out)
    committed = (ROOT / written).read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), f"run {script}"


def test_the_commands_page_is_in_step_with_kvstore_ctl() -> None:
    """docs/commands.md is what --help says; tests/unit/worker looks at kvstore-worker's part."""
    script = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    committed = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert script["program_part"]("kvstore-ctl") in committed, "run docs/commands.py"
