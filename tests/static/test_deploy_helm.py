"""The chart in deploy/helm renders to what the manifests' rules hold for, and refuses the rest."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.manifest_rules import load_file, require_pods
from deploy.manifests import Document, Pod, parsed

ROOT = Path(__file__).parents[2]
RENDER = ROOT / "tests" / "support" / "deploy" / "render_chart.py"
Values = dict[str, Any]
VERSION = "1.34"
# Kinds that Kubernetes itself has no schema of.
FOREIGN = {"PodMonitor"}
GPU: Values = {
    "gpu": {"deviceClassName": "gpu.nvidia.com"},
    "store": {"device": "cuda:0", "tier1MiB": 65_536, "tier2MiB": 8_192, "roomMiB": 4_096},
    "image": {"store": "kvstore-server-cuda", "worker": "kvstore-worker-cuda"},
}
ACCEPTED: dict[str, Values] = {
    "as it is": {},
    "node": {"mode": "node", "node": {"selector": {"gpu": "yes"}, "hostPID": True}},
    "node for others": {"mode": "node", "worker": {"enabled": False}},
    "another user": {"user": 2000},
    "on a gpu": GPU,
    "disk": {"tier3": {"sizeMiB": 65_536, "claim": "slab"}},
    "node with a disk": {"mode": "node", "tier3": {"sizeMiB": 65_536}},
    "remote": {"remote": {"url": "valkeys://cache:6379", "secret": "shared", "trustUids": True}},
    "remote of a node": {
        "mode": "node",
        "store": {"tenantsSecret": "tenants"},
        "remote": {"url": "valkeys://cache", "secret": "shared", "credential": True}
        | {"authority": True, "write": "off"},
    },
    "tenants": {"store": {"tenantsSecret": "tenants"}, "worker": {"modelsClaim": "models"}},
    "metrics": {"mode": "node", "store": {"metricsPort": 7401, "podMonitor": True}},
    "settings": {"store": {"settings": {"eviction_policy": "lru", "verify_rate": 0.5}}},
    "no holder": {"holder": {"enabled": False}},
    "on a gpu alone": {**GPU, "store": {**GPU["store"], "tier2MiB": 0}},
    "a longer journal": {"holder": {"journalMiB": 100, "grace": 3600}},
    "a large store": {"mode": "node", "store": {"tier1MiB": 65_537, "tier2MiB": 32_768}},
    "large pages": {"store": {"settings": {"hugepages": "transparent"}, "tier2MiB": 512}},
    "a numa node": {"store": {"settings": {"tier2_numa_node": "0"}, "tier2MiB": 512}},
    "a registry": {"image": {"registry": "registry.example.org/", "pullSecrets": ["pull"]}},
}
# With a word of why.
REFUSED: dict[str, tuple[Values, str]] = {
    "a name": ({"store": {"tier1Mib": 1}}, "tier1Mib"),
    "no room": ({"store": {"roomMiB": 8}}, "roomMiB"),
    "a sidecar of nobody": ({"worker": {"enabled": False}}, "enabled"),
    "a gpu of a node": ({**GPU, "mode": "node"}, "mode"),
    "a device without a claim": ({"store": {"device": "cuda:0"}}, "device"),
    "a claim without a device": ({"gpu": {"deviceClassName": "gpu.nvidia.com"}}, "device"),
    "a monitor of no port": ({"store": {"podMonitor": True}}, "metricsPort"),
    "a disk of nobody": ({"tier3": {"sizeMiB": 1024}}, "claim"),
    "a disk of two": (
        {"tier3": {"sizeMiB": 1024, "claim": "slab"}, "worker": {"replicas": 2}},
        "replicas",
    ),
    "a remote tier without a key": (
        {"remote": {"url": "valkeys://cache", "trustUids": True}},
        "secret",
    ),
    "a remote tier of anybody": (
        {"remote": {"url": "valkeys://cache", "secret": "shared"}},
        "tenantsSecret",
    ),
    "a password in an address": (
        {"remote": {"url": "valkeys://a:b@cache", "secret": "s", "trustUids": True}},
        "url",
    ),
    "a holder of one's own": ({"store": {"settings": {"holder": "off"}}}, "holder"),
    "a holder without an end": ({"holder": {"grace": 0}}, "grace"),
    "a setting of the chart's": ({"store": {"settings": {"tier1_bytes": "1GiB"}}}, "tier1_bytes"),
}
# MiB of the holder and of the store.
MEMORY = {
    "as it is": [4_096 + 16 + 64, 1_024],
    "no holder": [None, 4_096 + 1_024],
    "on a gpu": [144 + 64, 8_192 + 4_096],
    "on a gpu alone": [None, 4_096],
    "a longer journal": [4_096 + 100 + 64, 1_024],
    "a large store": [65_537 + 32_768 + 193 + 64, 1_024],
    "large pages": [16 + 64, 4_096 + 512 + 1_024],
    "a numa node": [4_096 + 16 + 64, 512 + 1_024],
}
UNKNOWN = {"store": {"settings": {"no_such_setting": 1}}}


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Returns what Helm makes of each case; skips where this machine has not got its library."""
    if importlib.util.find_spec("helm_python") is None:
        pytest.skip("needs helm-python-sdk")
    cases = {**ACCEPTED, **{name: values for name, (values, _) in REFUSED.items()}}
    said = subprocess.run(
        [sys.executable, str(RENDER), str(ROOT / "deploy" / "helm" / "kvstore")],
        input=json.dumps({**cases, "unknown": UNKNOWN}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    read: dict[str, Any] = json.loads(said.stdout)
    return read


def documents(answer: dict[str, Any], case: str) -> list[Document]:
    """Returns the documents that a case renders to."""
    manifests = answer["cases"][case]["manifests"]
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    return [each for text in texts for each in parsed(text)]


def workloads(answer: dict[str, Any], case: str) -> dict[str, Pod]:
    """Returns a case's pods by their workload's kind."""
    return {pod.kind: pod for pod in Pod.all_of(documents(answer, case))}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_it_renders_holds_to_the_rules(answer: dict[str, Any], case: str) -> None:
    """Every pod is confined, names what there is, and has the memory for the pages."""
    require_pods(documents(answer, case), ACCEPTED[case].get("user", 10001))


@pytest.mark.parametrize("case", ACCEPTED)
def test_kubernetes_knows_what_it_renders(answer: dict[str, Any], case: str) -> None:
    """No field is misspelt, misplaced or of another type, by the schemas of Kubernetes."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for each in documents(answer, case):
        if each["kind"] not in FOREIGN:
            validate.validate(each, VERSION, strict=True)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(answer: dict[str, Any], case: str) -> None:
    """The schema of the values says no, and names what is wrong."""
    assert REFUSED[case][1] in answer["cases"][case]["refused"]


def test_a_setting_that_there_is_none_of_ends_the_server(answer: dict[str, Any]) -> None:
    """It gets into the file that the server reads, which names it: a variable would be ignored."""
    (text,) = (
        each["data"]["kvstore.toml"]
        for each in documents(answer, "unknown")
        if each["kind"] == "ConfigMap"
    )
    with pytest.raises(ValueError, match="no_such_setting"):
        load_file(text)


def test_helm_has_nothing_to_say(answer: dict[str, Any]) -> None:
    """`helm lint --strict` finds no error and no warning; that there is no icon is no news."""
    assert answer["lint"]["errors"] == []
    assert [each for each in answer["lint"]["messages"] if each["severity"] > 1] == []


def test_modes_are_what_they_say(answer: dict[str, Any]) -> None:
    """A sidecar is in the worker's pod; a node's store is a pod of its own, with or without any."""
    assert list(workloads(answer, "as it is")) == ["Deployment", "Pod"]
    assert workloads(answer, "as it is")["Deployment"].store is not None
    assert set(workloads(answer, "node")) == {"DaemonSet", "Deployment", "Pod"}
    assert workloads(answer, "node")["Deployment"].store is None
    assert list(workloads(answer, "node for others")) == ["DaemonSet"]


def test_a_change_of_settings_replaces_pods(answer: dict[str, Any]) -> None:
    """The settings' digest is the pods', so that a changed file is not left unread."""
    digests = [
        workloads(answer, case)["Deployment"].metadata["annotations"]["checksum/settings"]
        for case in ("as it is", "settings")
    ]
    assert len(set(digests)) == 2


def test_memory_is_the_budgets_and_room(answer: dict[str, Any]) -> None:
    """The limits are the sum of what is the host's, by who makes it: on a GPU tier 1 is not."""
    limits = {
        case: [
            None if each is None else each.memory >> 20
            for each in map(
                next(iter(workloads(answer, case).values())).containers.get, ("holder", "store")
            )
        ]
        for case in MEMORY
    }
    assert limits == MEMORY


def test_what_a_restart_keeps_is_said(answer: dict[str, Any]) -> None:
    """The notes say it, and why nothing is kept where nothing can be."""
    for case, words in (
        ("as it is", "goes on with its pages"),
        ("no holder", "there is no holder"),
        ("on a gpu", "goes on with its pages"),
        ("on a gpu alone", "there is no tier 2"),
    ):
        manifests = answer["cases"][case]["manifests"]
        (notes,) = (text for path, text in manifests.items() if path.endswith("NOTES.txt"))
        assert words in notes


def test_metrics_are_found_where_they_are(answer: dict[str, Any]) -> None:
    """The monitor selects the store's pod and names its port, which the probes ask, too."""
    made = documents(answer, "metrics")
    (monitor,) = (each for each in made if each["kind"] == "PodMonitor")
    pod = workloads(answer, "metrics")["DaemonSet"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod.metadata["labels"].items()
    assert pod.store is not None
    (port,) = pod.store.spec["ports"]
    assert port["name"] == monitor["spec"]["podMetricsEndpoints"][0]["port"]
    assert port["containerPort"] == ACCEPTED["metrics"]["store"]["metricsPort"]
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/healthz")):
        assert pod.store.spec[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_the_notes_say_what_to_type(answer: dict[str, Any]) -> None:
    """The notes after an installation name the objects that were installed."""
    for case in ("as it is", "node for others"):
        manifests = answer["cases"][case]["manifests"]
        (notes,) = (text for path, text in manifests.items() if path.endswith("NOTES.txt"))
        names = {each["metadata"]["name"] for each in documents(answer, case)}
        told = re.findall(r"\b(?:deploy|daemonset|service)/(\S+)", notes)
        assert told
        assert set(told) <= names
