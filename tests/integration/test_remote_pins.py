"""Named pins and warmed prompts of hosts that share a real Valkey."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from inference_worker.commands.warm import warm
from inference_worker.engine.local_worker import local_worker
from inference_worker.model.model import load_model
from kvstore_client.testing import wait_until
from pages.stamped_pages import LAYOUT, page_count, prompt
from remote.server_hosts import Host, Hosts, running_hosts
from remote.valkey_server import ValkeyServer, valkey_server

PINNED, LOOSE = prompt(1), prompt(2)
PAGES = page_count(PINNED)
# Seconds that a page stays in the engine, and the longest life that it can have with them.
TTL = 4.0
LIFE = 1.25 * TTL
LIVES = 3
PATIENCE = 120.0
# A chat's system prompt, a prompt of exactly six pages, and one that ends within a page.
PROMPTS = (
    {
        "name": "chat",
        "messages": [{"role": "system", "content": "You answer in one sentence. " * 4}],
    },
    {"name": "whole", "prompt_ids": [each % 256 for each in range(96)]},
    {"name": "rest", "prompt_ids": [255 - each % 256 for each in range(100)]},
)
app = typer.Typer()
app.command()(warm)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Provides hosts on an engine, in folders whose paths are short enough for sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="kv-") as engine_folder,
        tempfile.TemporaryDirectory(prefix="kv-") as folder,
        valkey_server(Path(engine_folder)) as engine,
        running_hosts(Path(folder), engine) as made,
    ):
        yield made


def pin(host: Host, tokens: list[int]) -> None:
    """Pins all whole pages of a prompt under a name."""
    namespace_id = host.namespace_id
    assert host.client is not None
    host.client.admin.pin_prefix(namespace_id, "system", tokens, require_all=True)


def shared_tokens(host: Host) -> int:
    """Returns the tokens of the one pin that the engine has, as the host knows."""
    host.open()
    assert host.client is not None
    [found] = host.client.admin.named_pins()
    return found.remote_token_count


def pass_lives(engine: ValkeyServer, count: int) -> None:
    """Waits for so many lives of a page, by the engine's clock."""
    engine.admin("SET", "marker", "1", "PX", int(1000 * count * LIFE))
    assert wait_until(lambda: engine.admin("EXISTS", "marker") == 0, PATIENCE)


def pages_in(engine: ValkeyServer) -> int:
    """Returns the number of pages in the engine."""
    names = engine.admin("KEYS", "kv1/*")
    assert isinstance(names, list)
    return sum(not each.endswith(b"/canary") for each in names)


def test_a_pinned_prompt_outlives_its_life_in_the_engine(hosts: Hosts) -> None:
    """A new host finds it after several lives, and an unpinned one is gone. So is it in the end."""
    first = hosts.add("--remote-ttl", str(TTL))
    for tokens in (PINNED, LOOSE):
        first.publish(tokens)
    pin(first, PINNED)
    assert wait_until(lambda: shared_tokens(first) == PAGES * LAYOUT.page_tokens), first.store.log
    pass_lives(hosts.engine, LIVES)
    second = hosts.add("--remote-ttl", str(TTL))
    assert second.looks_in_vain(LOOSE)
    assert wait_until(lambda: second.matched(PINNED) == PAGES), (first.remote, first.store.log)
    assert first.remote.refreshed_pin_page_count >= LIVES * PAGES
    assert pages_in(hosts.engine) == PAGES
    assert first.client is not None
    first.client.admin.unpin_prefix(first.namespace_id, "system")
    assert wait_until(lambda: pages_in(hosts.engine) == 0, PATIENCE), first.remote
    assert hosts.add().looks_in_vain(PINNED)
    # Both hosts still have it in memory.
    assert [first.matched(PINNED), second.matched(PINNED)] == [PAGES, PAGES]


def test_pages_that_the_engine_lost_are_written_again(hosts: Hosts) -> None:
    """Nobody asks for them, and they are pinned. It may have evicted them, or come back empty."""
    first = hosts.add("--remote-ttl", str(TTL))
    first.publish(PINNED)
    pin(first, PINNED)
    names = hosts.engine.admin("KEYS", "kv1/*")
    assert isinstance(names, list)
    hosts.engine.admin("DEL", *names)
    assert wait_until(lambda: pages_in(hosts.engine) == PAGES, PATIENCE), first.remote
    hosts.engine.kill()
    hosts.engine.start()
    assert wait_until(lambda: pages_in(hosts.engine) == PAGES, PATIENCE), first.remote
    assert wait_until(lambda: first.remote.absent_pin_page_count == 0, PATIENCE), first.remote
    second = hosts.add("--remote-ttl", str(TTL))
    assert wait_until(lambda: second.matched(PINNED) == PAGES), second.store.log


def warmed(host: Host, file: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Runs ``kvstore-worker warm`` on a host; returns the result of each prompt by its name."""
    store = ("--store", str(host.store.runtime_dir), "--json")
    model = ("--model", "tiny", "--longest", "512", "--threads", "1", "--ttl", "1h")
    done = CliRunner().invoke(app, [str(file), *model, *store, *options])
    assert done.exit_code == 0, done.output
    return {each["name"]: each for each in json.loads(done.stdout)["prompts"]}


@pytest.mark.parametrize("write", ["through", "second-touch"])
def test_the_second_host_computes_nothing(hosts: Hosts, tmp_path: Path, write: str) -> None:
    """One list of prompts warms both, with tokens of the first one's pages, and a request hits."""
    size = 64 * load_model("tiny").layout(16).page_bytes
    memory = ("--tier1-bytes", str(size), "--extent-bytes", str(size), "--remote-write", write)
    first, second = hosts.add(*memory), hosts.add(*memory)
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)))
    made = warmed(first, file, "--share-timeout", str(PATIENCE))
    found = warmed(second, file, "--share-timeout", str(PATIENCE))
    for name, each in made.items():
        other = found[name]
        whole = each["tokens"] // 16 * 16
        assert (each["failure"], other["failure"]) == (None, None)
        assert (each["computed_tokens"], each["remote_tokens"]) == (each["tokens"], 0)
        assert (other["computed_tokens"], other["remote_tokens"]) == (0, whole), found
        assert each["pinned_tokens"] == other["pinned_tokens"] == whole
        assert each["shared_tokens"] == other["shared_tokens"] == whole
    again = warmed(second, file)
    moved = [(each["computed_tokens"], each["remote_tokens"]) for each in again.values()]
    assert moved == [(0, 0)] * len(PROMPTS)
    with local_worker("tiny", runtime_dir=second.store.runtime_dir, longest=512) as worker:
        asked = worker.engine.generate([*PROMPTS[1]["prompt_ids"], 7, 8, 9], 2)
        assert asked.matched_tokens == 96
    with local_worker("tiny", backend=None, longest=512) as alone:
        assert alone.engine.generate([*PROMPTS[1]["prompt_ids"], 7, 8, 9], 2).output_ids == (
            asked.output_ids
        )
