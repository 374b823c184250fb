"""The units of systemd in deploy/ agree with each other, with the code, and with systemd."""

import re
import tomllib
from pathlib import Path

import pytest

from deploy.tools import LEAST_HEADROOM, run, size
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.service.tenancy.tenants_file import parse_tenants

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "kvstore-server.service"
WORKER_UNIT = DEPLOY / "kvstore-worker.service"
# Of 100, as `systemd-analyze security` counts.
MOST_EXPOSED = {UNIT.name: 10, WORKER_UNIT.name: 16}


def service_of(unit: Path) -> dict[str, list[str]]:
    """Returns a unit's [Service]: each setting may stand there more than once."""
    settings: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").split("[Service]")[1].splitlines():
        name, given, value = line.partition("=")
        if given and not line.startswith(("#", "[")):
            settings.setdefault(name, []).append(value)
    return settings


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    """Returns the store's."""
    return service_of(UNIT)


@pytest.fixture(scope="module")
def worker() -> dict[str, list[str]]:
    """Returns the worker's."""
    return service_of(WORKER_UNIT)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns the settings that the example file makes."""
    for name in Config.model_fields:
        monkeypatch.delenv(f"KVSTORE_{name.upper()}", raising=False)
    return load_config(["--config-file", str(DEPLOY / "kvstore.toml")])


@pytest.fixture(params=[UNIT, WORKER_UNIT], ids=["server", "worker"])
def runnable_unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns a copy of a unit that names a program of this machine, as tools look for it."""
    unit: Path = request.param
    text = unit.read_text(encoding="utf-8")
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), encoding="utf-8")
    return copy


def test_systemd_accepts_the_unit(runnable_unit: Path) -> None:
    """Systemd knows each setting of the unit, and has nothing to say about it."""
    said = run("systemd-analyze", "verify", str(runnable_unit)).splitlines()
    # It looks at units that this one depends on, too.
    assert [line for line in said if runnable_unit.name in line] == []


def test_the_unit_is_hardened(runnable_unit: Path) -> None:
    """By systemd's own measure the unit leaves little open."""
    threshold = f"--threshold={MOST_EXPOSED[runnable_unit.name]}"
    run("systemd-analyze", "security", "--offline=true", threshold, str(runnable_unit))


def test_the_unit_leaves_room_for_the_pages(
    service: dict[str, list[str]], settings: Config
) -> None:
    """The unit's memory counts the pages of the example's settings, and more."""
    (most,) = service["MemoryMax"]
    assert size(most) >= settings.tier1_bytes + LEAST_HEADROOM


def test_the_example_of_tenants_can_be_read() -> None:
    """Every key of the example is one that there is, and its tenants get what it says."""
    known = parse_tenants((DEPLOY / "tenants.toml").read_bytes())
    assert known.tenants.has_tokens
    assert known.quotas.of("assistants").tier1_bytes == 2 << 30
    assert known.quotas.of("uid-1").named_pins == known.quotas.of("operators").named_pins == 100


def test_the_unit_waits_for_the_drain(service: dict[str, list[str]], settings: Config) -> None:
    """Systemd kills no sooner than the store has drained and ended its calls."""
    (wait,) = service["TimeoutStopSec"]
    assert float(wait) >= settings.drain_grace + 5


def test_the_unit_s_folder_is_the_server_s(service: dict[str, list[str]]) -> None:
    """The folder that systemd makes is the one that the server is told, and has its mode."""
    (folder,) = service["RuntimeDirectory"]
    assert f"KVSTORE_RUNTIME_DIR=%t/{folder}" in service["Environment"]
    assert service["RuntimeDirectoryMode"] == ["0700"]


def test_the_worker_s_unit_fits_the_store_s(
    service: dict[str, list[str]], worker: dict[str, list[str]]
) -> None:
    """They share a user and the store's folder, and a stop reaches the serving process first."""
    for name in ("User", "Group"):
        assert worker[name] == service[name]
    assert [each for each in service["Environment"] if "RUNTIME_DIR" in each] == [
        each for each in worker["Environment"] if "RUNTIME_DIR" in each
    ]
    assert worker["KillMode"] == ["mixed"]
    assert worker["RestartPreventExitStatus"] == ["2"]
    (command,) = worker["ExecStart"]
    assert command.split()[:2] == ["/opt/kvstore/bin/kvstore-worker", "serve"]


def test_the_unit_runs_a_script_of_ours(service: dict[str, list[str]]) -> None:
    """The program is one that the package declares, and a wrong setting does not restart it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (command,) = service["ExecStart"]
    assert Path(command).name in project["scripts"]
    assert service["RestartPreventExitStatus"] == ["2"]
