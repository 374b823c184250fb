"""What is generated and committed is what its script writes today."""

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


def test_the_configuration_s_page_is_in_step_with_the_settings(tmp_path: Path) -> None:
    """docs/configuration.md is what docs/settings.py makes of the settings' descriptions."""
    out = tmp_path / "configuration.md"
    run("docs/settings.py", out)
    committed = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), "run docs/settings.py"


def test_the_metrics_page_is_in_step_with_their_definitions(tmp_path: Path) -> None:
    """docs/metrics.md is what docs/metrics.py makes of the definitions in kvstore/metrics."""
    out = tmp_path / "metrics.md"
    run("docs/metrics.py", out)
    committed = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), "run docs/metrics.py"


def test_the_dashboard_is_in_step_with_its_panels(tmp_path: Path) -> None:
    """deploy/grafana/kvstore.json is what dashboard.py makes of panels.toml."""
    out = tmp_path / "kvstore.json"
    run("deploy/grafana/dashboard.py", out)
    committed = (ROOT / "deploy" / "grafana" / "kvstore.json").read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), "run deploy/grafana/dashboard.py"


def test_the_permissions_page_is_in_step_with_their_table(tmp_path: Path) -> None:
    """docs/permissions.md is what docs/permissions.py makes of what the tests call by."""
    out = tmp_path / "permissions.md"
    run("docs/permissions.py", out)
    committed = (ROOT / "docs" / "permissions.md").read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), "run docs/permissions.py"


def test_the_errors_page_is_in_step_with_the_reasons(tmp_path: Path) -> None:
    """docs/errors.md is what docs/errors.py makes of the contract and of the client's classes."""
    out = tmp_path / "errors.md"
    run("docs/errors.py", out)
    committed = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert committed == out.read_text(encoding="utf-8"), "run docs/errors.py"


def test_the_commands_page_is_in_step_with_kvstore_ctl() -> None:
    """docs/commands.md is what --help says; tests/unit/worker looks at kvstore-worker's part."""
    script = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    committed = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert script["program_part"]("kvstore-ctl") in committed, "run docs/commands.py"
