"""Compose files and the Dockerfile agree with each other, with the code, and with their tools."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvstore
from deploy.tools import HOLDER_ROOM, LEAST_HEADROOM, run, size
from kvstore.config.loading import load_config
from kvstore.config.settings import Config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
Compose = dict[str, Any]


def read_compose(name: str) -> Compose:
    """Returns a compose file, its anchors resolved."""
    read: Compose = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def compose() -> Compose:
    """Returns the file with the store and two workers."""
    return read_compose("compose.yaml")


def test_compose_has_a_store_and_three_workers(compose: Compose) -> None:
    """Workers wait for a healthy store, and share its folder, its user and nothing else."""
    services = dict(compose["services"])
    store, _, workers = services.pop("store"), services.pop("holder"), services.values()
    assert sorted(services) == ["serve", "worker-a", "worker-b"]
    shared, _ = store["volumes"]
    for worker in workers:
        assert worker["depends_on"] == {"store": {"condition": "service_healthy"}}
        assert shared in worker["volumes"]
        assert worker["user"] == store["user"]
        assert "pid" not in worker
    uid, _, gid = store["user"].partition(":")
    folder = compose["volumes"][shared.split(":")[0]]["driver_opts"]
    assert folder["o"] == f"uid={uid},gid={gid},mode=0700"


def default_of(text: str) -> str:
    """Returns what compose makes of a value if its variable is not set."""
    found = re.fullmatch(r"\$\{\w+:-(.+)\}", text)
    return found[1] if found else text


@pytest.mark.parametrize("name", ["compose.yaml", "compose.vllm.yaml"])
def test_the_holder_s_container_has_the_pages_and_the_store_s_the_rest(name: str) -> None:
    """The holder makes the pages, so its limit counts them, without swap."""
    services = read_compose(name)["services"]
    store, holder = services["store"], services["holder"]
    tier1_bytes = default_of(store["environment"]["KVSTORE_TIER1_BYTES"])
    config = load_config(["--tier1-bytes", tier1_bytes])
    room = config.tier1_bytes + config.bytes_of_the_journal + HOLDER_ROOM
    assert size(default_of(holder["mem_limit"])) >= room
    assert size(default_of(store["mem_limit"])) >= LEAST_HEADROOM
    for each in (store, holder):
        assert each["memswap_limit"] == each["mem_limit"]


def test_the_holder_outlives_the_store(compose: Compose) -> None:
    """The holder is a container of its own, which neither the image's check nor the store ends."""
    store, holder = compose["services"]["store"], compose["services"]["holder"]
    assert store["depends_on"] == ["holder"]
    assert "depends_on" not in holder
    assert holder["restart"] == "unless-stopped"
    assert holder["healthcheck"] == {"disable": True}
    program, folder = holder["entrypoint"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert program in project["scripts"]
    assert store["environment"]["KVSTORE_HOLDER"] == folder
    assert store["environment"]["KVSTORE_HOLDER_START"] == "false"
    assert (store["image"], store["user"]) == (holder["image"], holder["user"])


@pytest.mark.parametrize("name", ["compose.yaml", "compose.vllm.yaml"])
def test_only_the_store_reaches_the_holder(name: str) -> None:
    """No worker mounts a holder's volume, since the holder gives out the memory of all tenants."""
    own = read_compose("compose.yaml")["services"]
    (volume,) = own["holder"]["volumes"]
    assert volume in own["store"]["volumes"]
    file = read_compose(name)
    for service, each in file["services"].items():
        mounted = any(text.startswith("holder:") for text in each.get("volumes", ()))
        assert mounted == (name == "compose.yaml" and service in ("store", "holder"))
    assert file["volumes"]["holder"] == file["volumes"]["runtime"]


def test_vllm_s_servers_share_the_same_store(compose: Compose) -> None:
    """They extend the store of the other file, with its user and folder, and more memory."""
    vllm = read_compose("compose.vllm.yaml")
    holder, store, *servers = vllm["services"].values()
    assert holder["extends"] == {"file": "compose.yaml", "service": "holder"}
    assert store["extends"] == {"file": "compose.yaml", "service": "store"}
    own = compose["services"]["store"]
    shared, _ = own["volumes"]
    devices = set()
    for server in servers:
        assert server["user"] == own["user"]
        assert shared in server["volumes"]
        assert server["environment"]["KVSTORE_RUNTIME_DIR"] == "/run/kvstore"
        (device,) = server["deploy"]["resources"]["reservations"]["devices"]
        devices.update(device["device_ids"])
    assert len(devices) == len(servers) == 2
    assert vllm["volumes"]["runtime"] == compose["volumes"]["runtime"]


def test_vllm_is_told_what_its_page_says() -> None:
    """Compose and Kubernetes hand vLLM the first configuration of docs/how-to-vllm.md."""
    page = (ROOT / "docs" / "how-to-vllm.md").read_text(encoding="utf-8")
    said, other = re.findall(r"--kv-transfer-config '(\{.*?\})'\n```", page, flags=re.DOTALL)
    wanted = json.loads(said)
    # The page's second flag differs in the connector alone.
    assert json.loads(other) == wanted | {"kv_connector": "KvstoreOffloadingConnector"}
    compose = read_compose("compose.vllm.yaml")["services"]["vllm-a"]["command"]
    manifest = yaml.safe_load((DEPLOY / "kubernetes/vllm/deployment.yaml").read_text("utf-8"))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    for arguments in (compose, container["args"]):
        (given,) = (each for each in arguments if each.startswith("--kv-transfer-config="))
        assert json.loads(given.partition("=")[2]) == wanted


@pytest.mark.parametrize("name", ["compose.yaml", "compose.remote.yaml", "compose.vllm.yaml"])
def test_images_have_the_project_s_version(name: str) -> None:
    """The images that compose builds have the project's version."""
    services = read_compose(name)["services"].values()
    tags = {each["image"].rpartition(":")[2] for each in services if "build" in each}
    assert tags == {kvstore.__version__}


def test_two_stores_share_an_engine_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No worker reaches the engine or the key, and no store another's folder."""
    services = read_compose("compose.remote.yaml")["services"]
    volumes = {
        name: {text.split(":")[0] for text in each["volumes"]} for name, each in services.items()
    }
    assert volumes["store-a"] & volumes["store-b"] == {"engine", "key"}
    assert volumes["store-a"] >= {"runtime-a", "state-a"}
    assert volumes["valkey"] == {"engine"}
    for each in ("a", "b"):
        worker, store = volumes[f"worker-{each}"], volumes[f"store-{each}"]
        assert worker & store == {f"runtime-{each}"}
    assert {each["network_mode"] for each in services.values()} == {"none"}
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    for name, value in services["store-a"]["environment"].items():
        assert name.removeprefix("KVSTORE_").lower() in Config.model_fields
        monkeypatch.setenv(name, str(value))
    config = load_config([])
    assert config.remote_write_in_force == "through"
    folder = services["valkey"]["command"]
    assert str(config.remote_url).removeprefix("valkey+unix://") in folder
    assert size(services["store-a"]["mem_limit"]) >= config.tier1_bytes + LEAST_HEADROOM


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
    vllm = read_compose("compose.vllm.yaml")["services"]
    for service in [*compose["services"].values(), vllm["vllm-a"], vllm["vllm-b"]]:
        assert service["build"]["target"] in stages
        assert service["image"].startswith(f"kvstore-{service['build']['target']}:")
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
    named = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert sorted(named) == [
        *("server,remote,ctl", "server,remote,ctl,cuda"),
        *("worker,ctl", "worker,ctl,cuda"),
    ]
    assert {extra for each in named for extra in each.split(",")} <= extras.keys()
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
            str(DEPLOY / "compose.remote.yaml"),
            str(DEPLOY / "compose.vllm.yaml"),
        ),
        (
            "check-jsonschema",
            "--check-metaschema",
            str(DEPLOY / "helm" / "kvstore" / "values.schema.json"),
        ),
        (
            "check-jsonschema",
            "--schemafile",
            str(DEPLOY / "helm" / "kvstore" / "values.schema.json"),
            str(DEPLOY / "helm" / "kvstore" / "values.yaml"),
        ),
    ],
    ids=["hadolint", "compose", "values-schema", "values"],
)
def test_the_linter_has_nothing_to_say(command: tuple[str, ...]) -> None:
    """The Dockerfile is to hadolint's taste, and what has a published schema fits it."""
    run(*command)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.remote.yaml", "compose.vllm.yaml"])
def test_no_container_dies_with_the_store(name: str) -> None:
    """No container joins another's process namespace: all end with its first process."""
    spaces = {each.get("pid", "host") for each in read_compose(name)["services"].values()}
    assert spaces == {"host"}


@pytest.mark.parametrize(
    "path",
    [
        "docs/gpu.md",
        "docs/how-to-containers.md",
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "clients/python/kvstore_client/memory/cuda/ipc_runtime.py",
        "clients/python/kvstore_ctl/doctor/device_checks.py",
    ],
)
def test_a_gpu_s_containers_share_what_its_handles_need(path: str) -> None:
    """Each text about sharing names the process namespace as well as IPC."""
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "pid: host" in text
    assert "IPC" in text or "ipc" in text
    assert "--ipc=host` or" not in text
