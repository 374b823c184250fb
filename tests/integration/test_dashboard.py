"""The dashboard and the alert rules, against the metrics of a real server that was used."""

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.promtool import promtool
from kvstore.metrics.definitions import METRICS
from kvstore.remote.secret.names import SECRET_BYTES
from kvstore_client import Client, ClientConfig, NamespaceIdentity
from kvstore_client.testing import running_store
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from processes.holder_folder import HolderFolder
from remote.server_hosts import write_private

DEPLOY = Path(__file__).parents[2] / "deploy"
LIMIT = 30.0
PAGE_TOKENS, PAGE_BYTES, PAGES = 16, 4096, 4
# Of every series there is: Prometheus' own.
EVERYWHERE = {"job", "instance", "le"}
NAME = re.compile(r"\bkvstore_[a-z0-9_]+")


def queries() -> list[str]:
    """Returns the queries of the dashboard and the rules."""
    board = json.loads((DEPLOY / "grafana" / "kvstore.json").read_text(encoding="utf-8"))
    found = [each["expr"] for panel in board["panels"] for each in panel.get("targets", [])]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def named(query: str) -> set[str]:
    """Returns the metrics in a query, a histogram under its own name."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(query)}


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provides the metrics text of a server with all its tiers and events in use, and a holder."""
    slab = tmp_path_factory.mktemp("slab") / "slab"
    shared = tmp_path_factory.mktemp("shared")
    (shared / "pages").mkdir()
    key = write_private(shared / "key", bytes(range(SECRET_BYTES)))
    arguments = (
        *("--tier1-bytes", str(3 * PAGES * PAGE_BYTES), "--tier2-bytes", "1MiB"),
        *("--extent-bytes", str(3 * PAGES * PAGE_BYTES)),
        *("--tier3-path", str(slab), "--tier3-bytes", "16MiB", "--tier3-write", "through"),
        *("--remote-url", f"file://{shared / 'pages'}", "--remote-key-file", str(key)),
        *("--remote-state-dir", str(shared / "state"), "--remote-trust-uids"),
        *("--metrics-listen", "127.0.0.1:0", "--verify-rate", "1", "--kv-events"),
    )
    config = ClientConfig(call_timeout=LIMIT)
    layout = PageLayout(PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"dashboard"))
    with (
        HolderFolder(tmp_path_factory.mktemp("holder") / "holder") as holder,
        running_store(*arguments, "--holder", str(holder.path)) as store,
        Client(store.runtime_dir, config) as client,
    ):
        identity = NamespaceIdentity(b"m", display_name='a "model"')
        namespace = client.namespace(identity, layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        for number in range(6):
            tokens = [number * 1000 + each for each in range(PAGES * PAGE_TOKENS)]
            with namespace.acquire([*tokens, 1], total_page_count=PAGES) as acquired:
                if acquired.reservation is not None:
                    acquired.reservation.insert(tokens, position=0)
        port = int(re.findall(r"http_listening.*port=(\d+)", store.log)[-1])
        connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.request("GET", "/metrics")
        yield connection.getresponse().read().decode()
        connection.close()


@pytest.fixture(scope="module")
def shown(scrape: str) -> dict[str, set[str]]:
    """Returns the labels of each of our metrics in the scrape."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("kvstore_"):
            assert family.samples, name
            found[name] = {label for each in family.samples for label in each.labels}
    return found


def test_every_metric_that_is_asked_for_is_there(shown: dict[str, set[str]]) -> None:
    """Every metric in the dashboard and the rules exists."""
    asked = {name for query in queries() for name in named(query)}
    assert asked - set(shown) == set()
    assert len(asked) > 40


def test_every_metric_that_is_there_is_asked_for(shown: dict[str, set[str]]) -> None:
    """Every defined metric is shown, and used in the dashboard or a rule."""
    asked = {name for query in queries() for name in named(query)}
    assert set(shown) - asked == set()
    assert {metric.name for metric in METRICS} == set(shown)


def test_queries_use_labels_that_there_are(shown: dict[str, set[str]]) -> None:
    """Queries group and filter by existing labels only."""
    for query in queries():
        labels = set.union(*(shown[name] for name in named(query)), set()) | EVERYWHERE
        grouped = re.findall(r"(?:by|on|group_left) \(([^)]*)\)", query)
        used = {each.strip() for group in grouped for each in group.split(",")}
        used |= set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query))
        assert used - {""} <= labels, query


def test_the_metrics_are_the_documented_ones(shown: dict[str, set[str]]) -> None:
    """The metrics and their labels are the documented ones."""
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(kvstore_\w+)` \| ([^|]*) \|", page, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert documented == {name: labels - {"le"} for name, labels in shown.items()}


def test_prometheus_accepts_the_scrape(scrape: str) -> None:
    """The scrape and the metrics' names pass promtool."""
    ours = "".join(
        line for line in scrape.splitlines(keepends=True) if re.match(r"(# \w+ )?kvstore_", line)
    )
    assert promtool("check", "metrics", given=ours) == ""
