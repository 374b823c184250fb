"""What deploy/ says agrees with itself, with the code, and with the tools that would read it."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from kvstore.config import Config
from kvstore.config_loading import load_config
from kvstore.service.tenants_file import parse_tenants

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "kvstore-server.service"
WORKER_UNIT = DEPLOY / "kvstore-worker.service"
MIB = 1 << 20
Compose = dict[str, Any]
# What index and process may take beside the pages.
LEAST_HEADROOM = 256 * MIB
# Of 100, as `systemd-analyze security` counts.
MOST_EXPOSED = {UNIT.name: 10, WORKER_UNIT.name: 16}


def size(text: str) -> int:
    """Return bytes: systemd and compose write G and m for what the settings write GiB and MiB."""
    spelt = re.sub(r"([kmgKMG])$", lambda unit: unit[1].upper() + "iB", text)
    return TypeAdapter(ByteSize).validate_python(spelt)


def run(*command: str) -> str:
    """Run a tool and return what it said; skip where this machine has not got it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def service_of(unit: Path) -> dict[str, list[str]]:
    """Return a unit's [Service]: each setting may stand there more than once."""
    settings: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").split("[Service]")[1].splitlines():
        name, given, value = line.partition("=")
        if given and not line.startswith(("#", "[")):
            settings.setdefault(name, []).append(value)
    return settings


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    """Return the store's."""
    return service_of(UNIT)


@pytest.fixture(scope="module")
def worker() -> dict[str, list[str]]:
    """Return the worker's."""
    return service_of(WORKER_UNIT)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the settings that the example file makes."""
    for name in Config.model_fields:
        monkeypatch.delenv(f"KVSTORE_{name.upper()}", raising=False)
    return load_config(["--config-file", str(DEPLOY / "kvstore.toml")])


@pytest.fixture(scope="module")
def compose() -> Compose:
    """Return the compose file, its anchors resolved."""
    read: Compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return read


@pytest.fixture(params=[UNIT, WORKER_UNIT], ids=["server", "worker"])
def runnable_unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a unit that names a program of this machine, as tools look for it."""
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


def test_compose_has_a_store_and_three_workers(compose: Compose) -> None:
    """Workers wait for a healthy store, and share its folder, its user and nothing else."""
    services = dict(compose["services"])
    store, workers = services.pop("store"), services.values()
    assert sorted(services) == ["serve", "worker-a", "worker-b"]
    (shared,) = store["volumes"]
    for worker in workers:
        assert worker["depends_on"] == {"store": {"condition": "service_healthy"}}
        assert shared in worker["volumes"]
        assert worker["user"] == store["user"]
        assert "pid" not in worker
    uid, _, gid = store["user"].partition(":")
    folder = compose["volumes"][shared.split(":")[0]]["driver_opts"]
    assert folder["o"] == f"uid={uid},gid={gid},mode=0700"


def test_the_store_s_container_has_room_for_the_pages(compose: Compose) -> None:
    """The store's limit counts the pages and more, without swap, and no worker's does."""
    store = compose["services"]["store"]
    assert size(store["mem_limit"]) >= size(store["environment"]["KVSTORE_TIER1_BYTES"]) + (
        LEAST_HEADROOM
    )
    assert store["memswap_limit"] == store["mem_limit"]


def test_the_store_s_container_waits_for_the_drain(compose: Compose) -> None:
    """The container is killed no sooner than the store has drained and ended its calls."""
    store = compose["services"]["store"]
    wait = float(store["stop_grace_period"].removesuffix("s"))
    assert wait >= store["environment"]["KVSTORE_DRAIN_GRACE"] + 5


def test_compose_names_settings_that_there_are(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variable of the store is a setting, with a value that it can have."""
    given = compose["services"]["store"]["environment"]
    for name, value in given.items():
        assert name.removeprefix("KVSTORE_").lower() in Config.model_fields
        monkeypatch.setenv(name, str(value))
    assert str(load_config([]).runtime_dir) == given["KVSTORE_RUNTIME_DIR"]


def test_compose_builds_what_the_dockerfile_has(compose: Compose) -> None:
    """Each target is a stage, each stage's user is compose's, and what is copied is there."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM .+ AS (\S+)$", text, flags=re.MULTILINE))
    for service in compose["services"].values():
        assert service["build"]["target"] in stages
        assert f"USER {service['user']}" in text
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line.removeprefix("!").split("/")[0] for line in ignored if line.startswith("!")}
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE):
        for path in copied.split():
            assert (ROOT / path).exists(), path
            assert path.split("/")[0] in kept, path


def test_the_dockerfile_installs_the_extras_that_there_are() -> None:
    """The images install extras of the package, and the server's has no torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert sorted(re.findall(r"'\.\[(\w+)\]'", text)) == ["server", "worker"]
    assert "torch" in extras["worker"]
    assert "torch" not in extras["server"]


@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", str(DEPLOY / "Dockerfile")),
        (
            "check-jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            str(DEPLOY / "compose.yaml"),
        ),
    ],
    ids=["hadolint", "check-jsonschema"],
)
def test_the_linter_has_nothing_to_say(command: tuple[str, ...]) -> None:
    """The Dockerfile is to hadolint's taste, and compose.yaml fits the published schema."""
    run(*command)
