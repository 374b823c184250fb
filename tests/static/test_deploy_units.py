"""The units of systemd in deploy/ agree with each other, with the code, and with systemd."""

import re
import tomllib
from pathlib import Path

import pytest

from deploy.tools import HOLDER_ROOM, LEAST_HEADROOM, run, size
from deploy.units import DEPLOY, HOLDER_UNIT, SERVER_UNIT, WORKER_UNIT, section_of
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.holder.holder_process import DEFAULT_DESCRIPTORS, parse
from kvstore.service.tenancy.tenants_file import parse_tenants

ROOT = Path(__file__).parents[2]
DROP_IN = DEPLOY / "kvstore-server-fdstore.conf"
UNITS = {"server": SERVER_UNIT, "worker": WORKER_UNIT, "holder": HOLDER_UNIT}
# Of 100, as `systemd-analyze security` counts.
MOST_EXPOSED = {SERVER_UNIT.name: 10, WORKER_UNIT.name: 16, HOLDER_UNIT.name: 10}
HOLDER_FOLDER = "%t/kvstore-holder"


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    """Returns the store's."""
    return section_of(SERVER_UNIT)


@pytest.fixture(scope="module")
def worker() -> dict[str, list[str]]:
    """Returns the worker's."""
    return section_of(WORKER_UNIT)


@pytest.fixture(scope="module")
def holder() -> dict[str, list[str]]:
    """Returns the holder's."""
    return section_of(HOLDER_UNIT)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns the settings that the example file makes."""
    for name in Config.model_fields:
        monkeypatch.delenv(f"KVSTORE_{name.upper()}", raising=False)
    return load_config(["--config-file", str(DEPLOY / "kvstore.toml")])


@pytest.fixture(params=list(UNITS.values()), ids=list(UNITS))
def runnable_unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns a copy of a unit, beside those of the others, which it may name."""
    own: Path = request.param
    copies = {unit: runnable(unit, tmp_path) for unit in UNITS.values()}
    return copies[own]


def runnable(unit: Path, folder: Path) -> Path:
    """Returns a copy of a unit in a folder, with a program of this machine."""
    text = unit.read_text(encoding="utf-8")
    copy = folder / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text), encoding="utf-8")
    return copy


def complaints(unit: Path) -> list[str]:
    """Returns what systemd says about a unit, and not about those that it depends on."""
    said = run("systemd-analyze", "verify", str(unit)).splitlines()
    return [line for line in said if unit.stem in line]


def test_systemd_accepts_the_unit(runnable_unit: Path) -> None:
    """Systemd knows each setting of the unit, and has nothing to say about it."""
    assert complaints(runnable_unit) == []


def test_systemd_accepts_its_own_store_in_place_of_the_holder(tmp_path: Path) -> None:
    """The drop-in overrides settings of the unit alone, and a server can have its settings."""
    unit = runnable(SERVER_UNIT, tmp_path)
    drop_in = tmp_path / f"{SERVER_UNIT.name}.d" / "fdstore.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(DROP_IN.read_text(encoding="utf-8"), encoding="utf-8")
    assert complaints(unit) == []
    # Without it systemd finds what the file says, so the file is read.
    drop_in.write_text("[Service]\nFileDescriptorStoreMax=none\n", encoding="utf-8")
    assert complaints(unit) != []


def test_systemd_s_own_store_has_room(settings: Config) -> None:
    """The server makes the pages itself there, so its limit counts them and the journal."""
    own = section_of(DROP_IN)
    assert own["Environment"] == ["KVSTORE_HOLDER=systemd"]
    assert int(own["FileDescriptorStoreMax"][0]) >= DEFAULT_DESCRIPTORS
    pages = settings.tier1_bytes + settings.bytes_of_the_journal
    assert size(own["MemoryMax"][0]) >= pages + LEAST_HEADROOM


def test_the_unit_is_hardened(runnable_unit: Path) -> None:
    """By systemd's own measure the unit leaves little open."""
    threshold = f"--threshold={MOST_EXPOSED[runnable_unit.name]}"
    run("systemd-analyze", "security", "--offline=true", threshold, str(runnable_unit))


def test_the_holder_s_unit_has_the_pages_and_the_server_s_the_rest(
    service: dict[str, list[str]], holder: dict[str, list[str]], settings: Config
) -> None:
    """The holder makes the memory of the example's settings, so its unit counts that."""
    (most,) = holder["MemoryMax"]
    held = settings.tier1_bytes + settings.tier2_bytes + settings.bytes_of_the_journal
    assert size(most) >= held + HOLDER_ROOM
    (most,) = service["MemoryMax"]
    assert size(most) >= LEAST_HEADROOM


def test_neither_unit_ends_the_other(
    service: dict[str, list[str]], holder: dict[str, list[str]]
) -> None:
    """The server comes after the holder, and neither is stopped or restarted with the other."""
    unit = section_of(SERVER_UNIT, "Unit")
    assert unit["Wants"] == unit["After"] == [HOLDER_UNIT.name]
    for each in (unit, section_of(HOLDER_UNIT, "Unit")):
        assert not {"PartOf", "BindsTo", "Requires", "PropagatesStopTo"} & each.keys()
    # It starts no holder of its own, which would be in its control group.
    assert "KVSTORE_HOLDER_START=false" in service["Environment"]
    assert holder["Restart"] == ["always"]
    assert holder["Type"] == ["forking"]


def test_a_killed_server_is_soon_back(service: dict[str, list[str]]) -> None:
    """Systemd starts it again at once, thirty times in a minute."""
    assert service["RestartSec"] == ["100ms"]
    unit = section_of(SERVER_UNIT, "Unit")
    assert (unit["StartLimitBurst"], unit["StartLimitIntervalSec"]) == (["30"], ["60"])


def test_only_the_server_reaches_the_holder(
    service: dict[str, list[str]], worker: dict[str, list[str]], holder: dict[str, list[str]]
) -> None:
    """The folder is the holder's own, which workers cannot see though they are of its user."""
    assert f"KVSTORE_HOLDER={HOLDER_FOLDER}" in service["Environment"]
    assert service["ReadWritePaths"] == [f"-{HOLDER_FOLDER}"]
    assert worker["InaccessiblePaths"] == [f"-{HOLDER_FOLDER}"]
    # A path that is not there when the unit starts would stay accessible.
    assert HOLDER_UNIT.name in section_of(WORKER_UNIT, "Unit")["After"][0].split()
    assert f"%t/{holder['RuntimeDirectory'][0]}" == HOLDER_FOLDER
    assert holder["RuntimeDirectoryMode"] == ["0700"]
    assert holder["RuntimeDirectoryPreserve"] == ["yes"]
    for name in ("User", "Group"):
        assert holder[name] == service[name]


def test_the_holder_s_command_is_one(holder: dict[str, list[str]]) -> None:
    """It can be parsed, it returns once the holder serves, and it may have the descriptors."""
    (command,) = holder["ExecStart"]
    options = parse(command.split()[1:])
    assert (str(options.folder), options.background) == (HOLDER_FOLDER, True)
    assert int(holder["LimitNOFILE"][0]) >= options.descriptors


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


def test_the_units_run_scripts_of_ours(
    service: dict[str, list[str]], holder: dict[str, list[str]]
) -> None:
    """Programs are those that the package declares, and a wrong setting restarts no server."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for each in (service, holder):
        (command,) = each["ExecStart"]
        assert Path(command.split()[0]).name in project["scripts"]
    assert service["RestartPreventExitStatus"] == ["2"]
