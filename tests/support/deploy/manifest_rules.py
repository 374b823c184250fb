"""The rules for every pod of deploy/, however it was written or rendered."""

import inspect
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import kvstore
from deploy.manifests import Container, Document, Pod
from deploy.tools import HOLDER_ROOM
from inference_worker.commands.serve import serve
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.holder.holder_process import parse

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
# Besides the server's settings, as docs/configuration.md lists them.
VARIABLES = frozenset({"KVSTORE_RUNTIME_DIR", "KVSTORE_CACHE"})
MIB = 1 << 20
# What index and process may take beside the pages.
LEAST_ROOM = 256 * MIB
# Seconds: what the worker's engines take to end, and the store's calls.
LEAST_MARGIN = 5
# Seconds that a kubelet waits at most before it starts a container again.
LONGEST_BACK_OFF = 300
HOLDER = "holder"
SERVE_GRACE = inspect.signature(serve).parameters["grace"].default


def require_pods(documents: Iterable[Document], user: int = 10001) -> list[Pod]:
    """Returns the pods, each of which is confined, names what there is, and has the memory."""
    documents = list(documents)
    pods = Pod.all_of(documents)
    assert pods
    for pod in pods:
        require_confined(pod, user)
        for container in pod.containers.values():
            require_known(container)
        require_one_folder(pod)
        if pod.store is not None:
            settings = settings_of(pod, documents)
            require_room(pod.store, settings)
            require_holder(pod, settings)
        require_grace(pod, settings_of(pod, documents) if pod.store else None)
    return pods


def require_confined(pod: Pod, user: int) -> None:
    """The pod has what its containers need, and no service's variables that look like ours."""
    assert pod.spec["enableServiceLinks"] is False
    assert pod.spec["automountServiceAccountToken"] is False
    context = pod.spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (
        user,
        user,
        True,
    )
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostIPC"} & pod.spec.keys()
    for container in pod.containers.values():
        own = container.spec["securityContext"]
        assert own["allowPrivilegeEscalation"] is False, container.name
        assert own["capabilities"]["drop"] == ["ALL"], container.name
        # One gives the node's folder to the store's user, and has that right alone.
        folder = container.name == "folder"
        assert own["capabilities"].get("add", []) == (["CHOWN"] if folder else [])
        assert ({"runAsNonRoot": False, "runAsUser": 0}.items() <= own.items()) == folder
        assert "memory" in container.spec["resources"]["requests"], container.name


def require_known(container: Container) -> None:
    """Images, variables, options and the probe's command are those that there are."""
    target = container.image.removeprefix("kvstore-")
    assert re.search(rf"^FROM .+ AS {re.escape(target)}$", DOCKERFILE, re.MULTILINE), target
    assert container.tag == kvstore.__version__
    for name in container.env:
        if name.startswith("KVSTORE_") and name not in VARIABLES:
            assert name.removeprefix("KVSTORE_").lower() in Config.model_fields, name
    if target.startswith("worker"):
        command, *words = container.args
        assert command == "serve"
        options = {f"--{each.replace('_', '-')}" for each in inspect.signature(serve).parameters}
        assert {word for word in words if word.startswith("--")} <= options
    for probe in ("livenessProbe", "readinessProbe"):
        if "exec" in (asked := container.spec.get(probe, {})):
            command = asked["exec"]["command"]
            assert command[1] in DOCKERFILE
            assert command[2:] == (["liveness"] if probe == "livenessProbe" else [])


def require_one_folder(pod: Pod) -> None:
    """Store and workers of a pod name one folder, made by the store in a volume of all."""
    users = [each for each in pod.containers.values() if "KVSTORE_RUNTIME_DIR" in each.env]
    for container in users:
        folder = PurePosixPath(container.env["KVSTORE_RUNTIME_DIR"])
        assert folder.parent == PurePosixPath(container.mounts["runtime"])
    volume = pod.volumes.get("runtime")
    if volume is not None and "hostPath" in volume:
        # Whoever has no store waits for the folder of one.
        kind = "DirectoryOrCreate" if pod.store else "Directory"
        assert volume["hostPath"]["type"] == kind


def settings_of(pod: Pod, documents: Iterable[Document]) -> Config:
    """Returns the settings that a pod's store has, by its variables and its ConfigMap."""
    assert pod.store is not None
    if "KVSTORE_CONFIG_FILE" not in pod.store.env:
        lines = [
            f"{name.removeprefix('KVSTORE_').lower()} = {json.dumps(value)}"
            for name, value in pod.store.env.items()
        ]
        return load_file("\n".join(lines))
    (text,) = (each["data"]["kvstore.toml"] for each in documents if each["kind"] == "ConfigMap")
    return load_file(text)


def load_file(text: str) -> Config:
    """Returns the settings of a file with this text; raises what the server would end with."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return load_config(["--config-file", file.name])


def require_room(store: Container, settings: Config) -> None:
    """The store's limit counts the memory of the host that it makes itself, and room besides."""
    host = settings.tier2_bytes + (settings.tier1_bytes if settings.device == "cpu" else 0)
    require_limit(store, host - held_bytes(settings) + LEAST_ROOM)


def require_limit(container: Container, least_bytes: int) -> None:
    """The container may have some memory at least, and asks for all that it may have."""
    assert container.memory >= least_bytes, container.name
    # A page that is reclaimed or shared out twice helps nobody: what it may have it asks for.
    resources = container.spec["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def held_bytes(settings: Config) -> int:
    """Returns the bytes of pages that the store's holder makes: ordinary ones, on any NUMA node."""
    if settings.holder == "off" or settings.device != "cpu" or settings.hugepages != "off":
        return 0
    anywhere = settings.named_numa_node is None
    return settings.tier1_bytes + (settings.tier2_bytes if anywhere else 0)


def require_holder(pod: Pod, settings: Config) -> None:
    """The holder starts first, has the memory, and is reached by the store and nobody else."""
    mounting = {name for name, each in pod.containers.items() if HOLDER in each.mounts}
    if settings.holder == "off":
        assert HOLDER not in pod.containers
        assert not mounting
        return
    assert mounting == {HOLDER, "store"}
    assert pod.volumes[HOLDER]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    assert settings.holder_start is False
    holder, store = pod.containers[HOLDER], pod.containers["store"]
    assert holder.mounts == {HOLDER: store.mounts[HOLDER]}
    # The first container, which is restarted alone and ends last.
    assert pod.spec["initContainers"][0] is holder.spec
    assert holder.spec.get("restartPolicy") == "Always"
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & holder.spec.keys()
    program, *words = holder.spec["command"]
    assert program == "kvstore-holder"
    options = parse(words)
    # Below the volume, which is root's.
    assert str(options.folder) == settings.holder
    assert options.folder.parent == Path(holder.mounts[HOLDER])
    assert options.holder_grace > LONGEST_BACK_OFF
    require_limit(holder, held_bytes(settings) + settings.bytes_of_the_journal + HOLDER_ROOM)


def require_grace(pod: Pod, settings: Config | None) -> None:
    """The kubelet kills no sooner than workers and then the store have ended by themselves."""
    if pod.kind == "Pod":
        return
    needed = LEAST_MARGIN + (settings.drain_grace if settings else 0)
    worker = pod.containers.get("worker")
    if worker is not None:
        words = worker.args
        grace = float(words[words.index("--grace") + 1]) if "--grace" in words else SERVE_GRACE
        needed += grace + worker.spec["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod.spec["terminationGracePeriodSeconds"] >= needed
