"""kvstore-ctl pin, unpin, pins and evict against a real store."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.v1 import named_pin_pb2
from kvstore_client import Namespace
from kvstore_client.testing import RunningStore
from pages.stamped_pages import IDENTITY, SMALL_STORE, TOKENS, open_client, write_and_insert
from processes.ctl import run, run_json

WHOLE = TOKENS[:16]
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture
def namespace(store: RunningStore) -> Iterator[Namespace]:
    """Provides a namespace with four cached pages, and no pins before and after."""
    client, namespace = open_client(store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    assert client.flush(30)
    yield namespace
    (space,) = client.admin.namespaces()
    client.admin.evict_prefix(space.namespace_id, [])
    client.close()


@pytest.fixture
def prompt(tmp_path: Path) -> str:
    """Provides a file with all tokens: four pages and one token."""
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps(TOKENS), encoding="utf-8")
    return str(path)


def test_a_prompt_is_pinned_shown_and_unpinned(
    store: RunningStore, namespace: Namespace, prompt: str
) -> None:
    """A pinned prompt is reported in words, listed in the tables, and gone after unpinning."""
    name = IDENTITY.display_name
    first = run(store, "pin", "system", "--tokens", prompt)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith(f"system: 16 of 17 tokens are pinned in {name} (")
    run(store, "pin", "brief", "--tokens", prompt, "--ttl", "1h", "--namespace", name[:2])
    rows = [line for line in run(store, "pins").stdout.splitlines() if name in line]
    assert [row.split()[1] for row in rows] == ["system", "brief"]
    assert "named pins" in run(store, "stats").stdout
    assert run_json(store, "stats")["named_pin_count"] == 2
    for more in ((), ("--if-exists",)):
        ended = run(store, "unpin", "system", *more)
        assert ended.exit_code == 0
        assert ended.stdout.startswith(f"unpinned system in {name} (")
    again = run(store, "unpin", "system")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "no pin is named 'system'" in again.stderr
    assert "known are: brief" in again.stderr
    assert [each["name"] for each in run_json(store, "pins", "--namespace", name)] == ["brief"]
    assert namespace.peek(TOKENS) == 16


@pytest.mark.usefixtures("namespace")
def test_commands_have_their_answers_in_json(store: RunningStore, prompt: str) -> None:
    """JSON has a pin's name, and lists with the contract's fields and times in seconds."""
    pinned = run_json(store, "pin", "p", "--tokens", prompt, "--ttl", "90s")
    assert (pinned["name"], pinned["pinned_token_count"]) == ("p", 16)
    (listed,) = run_json(store, "pins")
    assert set(listed) == set(named_pin_pb2.NamedPinInfo.DESCRIPTOR.fields_by_name)
    assert listed["namespace_id"] == pinned["namespace_id"]
    assert 0 < listed["remaining"] <= 90
    run_json(store, "pin", "p", "--tokens", prompt)
    assert run_json(store, "pins")[0]["remaining"] is None
    assert run_json(store, "unpin", "p") == {"namespace_id": pinned["namespace_id"], "name": "p"}
    assert run_json(store, "pins") == []


@pytest.mark.usefixtures("namespace")
def test_what_is_not_cached_is_not_pinned(store: RunningStore, tmp_path: Path) -> None:
    """Pinning an uncached prompt is reported and succeeds, unless all of it is required."""
    path = tmp_path / "other"
    path.write_text("1 2 3 4 5 6 7 8", encoding="utf-8")
    lenient = run(store, "pin", "p", "--tokens", str(path))
    assert (lenient.exit_code, "no pin" in lenient.stdout) == (0, True)
    strict = run(store, "pin", "p", "--tokens", str(path), "--require-all")
    assert (strict.exit_code, strict.stdout) == (1, "")
    assert "PREFIX_NOT_CACHED" in strict.stderr
    assert run_json(store, "pins") == []


@pytest.mark.usefixtures("namespace")
def test_tokens_may_come_from_stdin_and_packed(store: RunningStore) -> None:
    """Tokens may come from stdin by a dash, and as binary with --packed."""
    content = b"".join(token.to_bytes(4, "little") for token in WHOLE)
    result = run(store, "pin", "p", "--tokens", "-", "--packed", "--require-all", typed=content)
    assert result.stdout.startswith("p: 16 of 16 tokens"), result.output


def test_an_eviction_asks_first(store: RunningStore, namespace: Namespace, tmp_path: Path) -> None:
    """An eviction asks first. After yes the last page and its named pins go."""
    path = tmp_path / "whole"
    path.write_text("\n".join(map(str, WHOLE)), encoding="utf-8")
    arguments = ("evict", "--tokens", str(path))
    run(store, "pin", "p", *arguments[1:])
    refused = run(store, *arguments, typed="n\n")
    assert (refused.exit_code, "removed" in refused.stdout) == (1, False)
    assert "16 tokens" in refused.stderr
    assert namespace.peek(TOKENS) == 16
    done = run(store, *arguments, typed="y\n")
    assert done.stdout.endswith(": removed 1 page, and 0 pages in use until the last release\n")
    again = run(store, *arguments, "--yes")
    assert again.stdout.endswith(": removed 0 pages, and 0 pages in use until the last release\n")
    assert namespace.peek(TOKENS) == 12
    assert run_json(store, "pins") == []


def test_a_namespace_is_emptied(store: RunningStore, namespace: Namespace) -> None:
    """Emptying a namespace asks with the number of pages. Held ones go at their release."""
    with namespace.match(TOKENS[:9]):
        asked = run(store, "evict", "--all", typed="n\n")
        assert ", 4 pages?" in asked.stderr
        gone = run_json(store, "evict", "--all", "--yes")
    assert (gone["evicted_page_count"], gone["detached_page_count"]) == (2, 2)
    assert namespace.peek(TOKENS) == 0


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pin", "p"], "--tokens"),
        (["pin", "p", "--tokens", "/no/such/file"], "/no/such/file"),
        (["pin", "p", "--tokens", "-", "--ttl", "soon"], "soon"),
        (["pin", "p", "--tokens", "-", "--namespace", "x"], "tiny"),
        (["pins", "--namespace", "x"], "tiny"),
        (["unpin"], "NAME"),
        (["evict"], "--all"),
        (["evict", "--all", "--tokens", "-", "--yes"], "--all"),
        (["evict", "--tokens", "-"], "--yes"),
        (["evict", "--tokens", "-", "--yes"], "--all"),
    ],
)
def test_a_wrong_command_line_is_status_two(
    store: RunningStore, arguments: list[str], complaint: str
) -> None:
    """A wrong command line is reported with its error, and nothing changes."""
    result = run(store, *arguments)
    assert (result.exit_code, complaint in result.stderr) == (2, True), result.output
    (namespace,) = run_json(store, "namespaces")
    assert (namespace["cached_page_count"], namespace["named_pin_count"]) == (4, 0)


@pytest.mark.usefixtures("namespace")
def test_refusals_are_status_one(store: RunningStore, prompt: str) -> None:
    """The store's refusals of a pin's name end with status 1."""
    run(store, "pin", "p", "--tokens", prompt)
    taken = run(store, "pin", "p", "--tokens", "-", typed="1 2 3 4")
    assert (taken.exit_code, "ID_REUSED" in taken.stderr) == (1, True)
    long = run(store, "unpin", "p" * 257)
    assert (long.exit_code, "INVALID_FIELD" in long.stderr) == (1, True)
