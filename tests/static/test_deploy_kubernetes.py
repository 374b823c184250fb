"""The manifests of deploy/kubernetes agree with the code, and with Kubernetes' own schemas."""

import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest

from deploy.manifest_rules import LEAST_ROOM, require_pods
from deploy.manifests import Document, Pod, parsed, resources

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
FOLDERS = sorted(path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml"))
# Of Kubernetes: the first one that has all that is used, and a late one.
EARLY, LATE = "1.34", "1.37"
HOLDER_START = "KVSTORE_HOLDER_START"
BUILDERS = (("kustomize", "build"), ("kubectl", "kustomize"))


def built(folder: Path) -> list[Document]:
    """Returns what kustomize makes of a folder; skips where this machine has none."""
    for program, command in BUILDERS:
        if shutil.which(program):
            said = subprocess.run(
                [program, command, str(folder)], capture_output=True, text=True, check=False
            )
            assert said.returncode == 0, said.stderr
            return parsed(said.stdout)
    pytest.skip("needs kustomize or kubectl")


def require_valid(documents: list[Document], version: str) -> None:
    """Raises where a document is none that this version of Kubernetes knows."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for each in documents:
        validate.validate(each, version, strict=True)


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "gpu"])
def test_the_manifests_say_what_there_is(folder: str) -> None:
    """Every pod is confined, names settings, options and images that exist, and has the memory."""
    require_pods(resources(KUBERNETES / folder))


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_knows_the_manifests(folder: str) -> None:
    """No field is misspelt, misplaced or of another type, by the schemas of Kubernetes."""
    require_valid(list(resources(KUBERNETES / folder)), EARLY)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_the_folder(folder: str) -> None:
    """The manifests that kubectl would apply, with all patches, follow the same rules."""
    documents = built(KUBERNETES / folder)
    require_pods(documents)
    require_valid(documents, LATE)


def test_the_pod_with_a_gpu_shares_what_cuda_ipc_needs() -> None:
    """Store and worker have one device of one claim, and see each other's processes."""
    (pod,) = Pod.all_of(built(KUBERNETES / "gpu"))
    assert pod.spec["shareProcessNamespace"] is True
    claims = {
        name: each.spec["resources"].get("claims", []) for name, each in pod.containers.items()
    }
    device = [{"name": pod.spec["resourceClaims"][0]["name"]}]
    # The holder maps nothing.
    assert claims == {"holder": [], "store": device, "worker": device}
    assert pod.store is not None
    assert pod.store.image == "kvstore-server-cuda"
    assert pod.store.env["KVSTORE_TIER1_BYTES"] == "16GiB"


def test_a_sidecar_holds_nobody_up() -> None:
    """The store starts before the worker, stops after it, and neither waits for it to be ready."""
    (pod,) = Pod.all_of(resources(KUBERNETES / "sidecar"))
    assert pod.store is not None
    assert pod.store.spec["restartPolicy"] == "Always"
    assert pod.store.spec in pod.spec["initContainers"]
    assert not {"startupProbe", "readinessProbe"} & pod.store.spec.keys()


def test_a_node_s_folder_is_that_of_its_workers() -> None:
    """Pods of workers mount the folder that the node's store makes its own in."""
    for folder in ("worker", "vllm"):
        pods = Pod.all_of(resources(KUBERNETES / folder))
        assert {"DaemonSet", "Deployment"} == {pod.kind for pod in pods}
        assert len({pod.volumes["runtime"]["hostPath"]["path"] for pod in pods}) == 1


def give(container: Document, size_bytes: int) -> None:
    """Gives a container some memory."""
    for each in container["resources"].values():
        each["memory"] = str(size_bytes)


@pytest.mark.parametrize(
    "fault",
    ["memory", "setting", "value", "option", "folder", "user", "grace", "image", "capability"],
)
def test_a_fault_is_found(fault: str) -> None:
    """A fault put into a manifest on purpose fails the rules."""
    documents = deepcopy(list(resources(KUBERNETES / "sidecar")))
    (pod,) = Pod.all_of(documents)
    store = pod.containers["store"].spec
    worker = pod.containers["worker"].spec
    match fault:
        case "memory":
            give(store, LEAST_ROOM - 1)
        case "setting":
            store["env"].append({"name": "KVSTORE_TIER_1_BYTES", "value": "1GiB"})
        case "value":
            store["env"].append({"name": "KVSTORE_LOG_LEVEL", "value": "loud"})
        case "option":
            worker["args"] += ["--engines", "2"]
        case "folder":
            worker["env"][0]["value"] = "/run/kvstore"
        case "user":
            pod.spec["securityContext"]["runAsUser"] = 0
        case "grace":
            pod.spec["terminationGracePeriodSeconds"] = 30
        case "image":
            store["image"] = "kvstore-server:latest"
        case "capability":
            worker["securityContext"]["capabilities"]["add"] = ["SYS_PTRACE"]
    with pytest.raises((AssertionError, ValueError)):
        require_pods(documents)


@pytest.mark.parametrize(
    "fault", ["memory", "end", "order", "grace", "folder", "guests", "volume", "own holder"]
)
def test_a_fault_in_the_holder_is_found(fault: str) -> None:
    """A holder that ends with the store, lacks memory or has guests fails the rules."""
    documents = deepcopy(list(resources(KUBERNETES / "sidecar")))
    (pod,) = Pod.all_of(documents)
    holder, store = pod.containers["holder"].spec, pod.containers["store"].spec
    match fault:
        case "memory":
            give(holder, pod.containers["holder"].memory - 1)
        case "end":
            del holder["restartPolicy"]
        case "order":
            pod.spec["initContainers"].reverse()
        case "grace":
            del holder["command"][-1]
        case "folder":
            holder["command"][1] = "/run/kvstore-holder"
        case "guests":
            pod.containers["worker"].spec["volumeMounts"] += holder["volumeMounts"]
        case "volume":
            pod.volumes["holder"]["emptyDir"] = {}
        case "own holder":
            store["env"] = [each for each in store["env"] if each["name"] != HOLDER_START]
    with pytest.raises(AssertionError):
        require_pods(documents)


@pytest.mark.parametrize("version", [EARLY, LATE])
def test_a_field_that_there_is_none_of_is_found(version: str) -> None:
    """A misspelt field does not fit the schemas."""
    documents = deepcopy(list(resources(KUBERNETES / "sidecar")))
    documents[0]["spec"]["template"]["spec"]["terminationGraceSeconds"] = 75
    with pytest.raises(Exception, match="terminationGraceSeconds"):
        require_valid(documents, version)
