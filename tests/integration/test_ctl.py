"""kvstore-ctl against a real store."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typer.testing import CliRunner

from kvstore import __version__
from kvstore.v1 import attach_pb2, store_pb2, store_pb2_grpc
from kvstore_client import ClientConfig, Namespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore
from kvstore_ctl.app import app
from pages.stamped_pages import LAYOUT, LIMIT, SMALL_STORE, TOKENS, open_client, write_and_insert
from processes.ctl import run, run_json
from wire.scripted_store import ScriptedAttach, refusal

OTHER = [*TOKENS[:8], *range(2000, 2009)]
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture(scope="module")
def namespace(store: RunningStore) -> Iterator[Namespace]:
    """Provides the namespace of worker-a, with a held match."""
    config = ClientConfig(display_name="worker-a", call_timeout=LIMIT)
    client, namespace = open_client(store.runtime_dir, config)
    write_and_insert(namespace, TOKENS)
    write_and_insert(namespace, OTHER)
    assert client.flush(LIMIT)
    with namespace.match(OTHER):
        yield namespace
    client.close()


def test_stats_are_shown(store: RunningStore, namespace: Namespace) -> None:
    """The tables of stats name the worker, the namespace and their holds."""
    result = run(store, "stats")
    assert result.exit_code == 0
    for word in ("worker-a", namespace.identity.display_name, "uid-", "quarantined"):
        assert word in result.stdout


def test_stats_are_json(store: RunningStore, namespace: Namespace) -> None:
    """JSON stats have all fields of the snapshot, and the slots add up."""
    stats = run_json(store, "stats")
    (arena,) = stats["arenas"]
    assert set(stats) == set(store_pb2.GetStatsResponse.DESCRIPTOR.fields_by_name)
    assert (stats["pin_count"], stats["reservation_count"]) == (1, 0)
    assert arena["cached_slot_count"] == 6
    assert arena["free_slot_count"] + arena["cached_slot_count"] == arena["slot_count"]
    assert stats["namespaces"][0]["layout"]["page_bytes"] == namespace.layout.page_bytes


@pytest.mark.usefixtures("namespace")
def test_leases_are_shown(store: RunningStore) -> None:
    """A lease's row has its name and its state."""
    result = run(store, "leases")
    assert result.exit_code == 0
    (row,) = (line for line in result.stdout.splitlines() if "worker-a" in line)
    assert "active" in row


@pytest.mark.usefixtures("namespace")
def test_leases_are_json(store: RunningStore) -> None:
    """A lease in JSON has its holds and its attached process."""
    (lease,) = run_json(store, "leases")
    assert (lease["display_name"], lease["state"]) == ("worker-a", "STATE_ACTIVE")
    assert (lease["pin_count"], lease["pinned_page_count"]) == (1, 4)
    assert lease["oldest_hold_age"] > 0
    (process,) = lease["processes"]
    assert (process["connected"], process["mapped_extent_count"] > 0) == (True, True)


@pytest.mark.usefixtures("namespace")
def test_a_lease_s_holds_are_shown(store: RunningStore) -> None:
    """A lease's holds have a row each, with the namespace's name and without tokens."""
    (lease,) = run_json(store, "leases")
    for named in (lease["lease_id"][:6], "worker"):
        result = run(store, "leases", named)
        assert result.exit_code == 0
        (row,) = (line for line in result.stdout.splitlines() if " pin " in line)
        assert "tiny" in row
        assert "1000" not in result.stdout
    (found,) = run_json(store, "leases", lease["lease_id"])
    (hold,) = found["holds"]
    assert (hold["kind"], hold["page_count"]) == ("KIND_PIN", 4)
    assert hold["token_count"] == 4 * LAYOUT.page_tokens
    assert run(store, "leases", "no such").exit_code == 2


@pytest.mark.usefixtures("namespace")
def test_a_tree_is_shown(store: RunningStore) -> None:
    """A tree shows shared pages once with their continuations below, and tokens on request."""
    lines = [line.rstrip() for line in run(store, "tree").stdout.splitlines()]
    assert lines[0] == f"tiny: 6 pages of {LAYOUT.page_tokens} tokens"
    assert lines[1].startswith("└── pages 0-1  pins 0")
    assert [line[4:17] for line in lines[2:]] == ["├── pages 2-3", "└── pages 2-3"]
    assert "1000" not in "".join(lines)
    assert "1000 1001 ..." in run(store, "tree", "--tokens", "2").stdout


@pytest.mark.usefixtures("namespace")
def test_a_tree_is_json(store: RunningStore) -> None:
    """A tree in JSON has each node's parent, pages, pins and hits, and the requested tokens."""
    (space,) = run_json(store, "tree", "--namespace", "ti", "--tokens", "1")
    nodes = {node["tokens"][0]: node for node in space["nodes"]}
    root = nodes[1000]
    assert (root["start_page"], root["page_count"], root["child_count"]) == (0, 2, 2)
    assert nodes[2000]["parent_node_id"] == nodes[1008]["parent_node_id"] == root["node_id"]
    assert (nodes[2000]["pin_count"], nodes[1008]["pin_count"]) == (1, 0)


@pytest.mark.usefixtures("namespace")
def test_a_tree_has_text(store: RunningStore, tmp_path: Path) -> None:
    """A tree shows text by a tokenizer, with control characters escaped."""
    words = {"hello": 1000, "\x1b[31m": 1001, "x": 2000}
    Tokenizer(WordLevel(words)).save(str(tmp_path / "tokenizer.json"))
    arguments = ("tree", "--tokenizer", str(tmp_path), "--depth", "1")
    lines = run(store, *arguments).stdout.splitlines()
    assert "hello \\x1b[31m ..." in lines[1]
    assert lines[2].strip() == "└── ... 2 more runs, 4 pages"
    (space,) = run_json(store, *arguments)
    assert {node["text"] for node in space["nodes"]} == {"hello \\x1b[31m", "x", ""}
    wrong = run(store, "tree", "--tokenizer", "/no/such/folder")
    assert (wrong.exit_code, "/no/such/folder" in wrong.stderr) == (2, True)
    one = run(store, "tree", "--tokenizer", "bytes", "--tokens", "1", "--width", "1").stdout
    assert "1 more run, 2 pages" in one


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_tree_of_no_namespace_is_status_two(store: RunningStore, form: list[str]) -> None:
    """An unknown namespace is a wrong command line, and the error lists the known ones."""
    result = run(store, "tree", "--namespace", "nothing", *form)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'nothing'" in result.stderr
    assert "tiny (" in result.stderr


def test_namespaces_are_shown(store: RunningStore, namespace: Namespace) -> None:
    """A namespace's row has its name and the beginning of its id. JSON has every field."""
    (listed,) = run_json(store, "namespaces")
    assert listed["identity"]["display_name"] == namespace.identity.display_name
    assert (listed["cached_page_count"], listed["named_pin_count"]) == (6, 0)
    shown = run(store, "namespaces").stdout
    assert listed["namespace_id"][:8] in shown
    assert namespace.identity.display_name in shown


def test_a_token_is_good_for_any_client(store: RunningStore) -> None:
    """The credential that `token` prints is valid for a bare gRPC call."""
    credential = run(store, "token").stdout.strip()
    assert run_json(store, "token") == {"credential": credential}
    with grpc.insecure_channel(RuntimeDir(store.runtime_dir).grpc_target) as channel:
        stats = store_pb2_grpc.StoreServiceStub(channel).GetStats(
            store_pb2.GetStatsRequest(),
            timeout=30,
            metadata=[("authorization", f"Bearer {credential}")],
        )
    assert stats.store_epoch == run_json(store, "stats")["store_epoch"]


def test_the_runtime_dir_may_come_from_the_environment(
    store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --runtime-dir a command uses the folder of the environment."""
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", str(store.runtime_dir))
    assert CliRunner().invoke(app, ["leases"]).exit_code == 0
    command = [sys.executable, "-m", "kvstore_ctl", "leases", "--json"]
    result = subprocess.run(command, capture_output=True, check=True)
    assert isinstance(json.loads(result.stdout), list)


@pytest.mark.parametrize("command", ["stats", "leases", "namespaces", "tree", "token", "pins"])
def test_without_a_store_the_status_is_three(tmp_path: Path, command: str) -> None:
    """A store that cannot be reached is reported on stderr with status 3."""
    result = CliRunner().invoke(app, [command, "--runtime-dir", str(tmp_path), "--json"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert str(tmp_path) in result.stderr


def test_a_refusal_is_status_one(tmp_path: Path) -> None:
    """A store that refuses is reported by its reason with status 1."""
    status = status_pb2.Status.FromString(refusal("PEER_REFUSED", why="test"))
    frame = attach_pb2.ServerFrame(refused=status)
    peer = ScriptedAttach(RuntimeDir(tmp_path).attach_socket, [(frame, ())])
    result = CliRunner().invoke(app, ["stats", "--runtime-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "PEER_REFUSED" in result.stderr
    peer.close()


def test_the_version_is_shown() -> None:
    """--version needs neither a store nor a command."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"kvstore-ctl {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [[], ["bogus"], ["tree", "--tokens", "-1"], ["stats", "--runtime-dir", "/" + "x" * 200]],
)
def test_a_wrong_command_line_is_status_two(arguments: list[str]) -> None:
    """A wrong command line ends with status 2."""
    assert CliRunner().invoke(app, arguments).exit_code == 2
