"""Warmed prompts are computed once, pinned, and found by the first user."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from inference_worker.chat.format import Message, chat_format
from inference_worker.chat.prompt_file import WarmPrompt
from inference_worker.commands.warm import Warmed, Warmer, warm
from inference_worker.engine.local_worker import LocalWorker, local_worker
from inference_worker.model.model import PagedModel
from kvstore_client.testing import RunningStore, running_store, wait_until

app = typer.Typer()
app.command()(warm)
PROMPT = WarmPrompt(1, "warm/first", [each % 256 for each in range(100)])
LONGEST = 128


@pytest.fixture(scope="module")
def store(paged_models: dict[str, PagedModel]) -> Iterator[RunningStore]:
    """Runs a store with room for a few prompts."""
    budget = str(paged_models["qwen3"].layout(16).page_bytes * 32)
    with running_store("--tier1-bytes", budget, "--extent-bytes", budget) as made:
        yield made


@pytest.fixture(scope="module")
def worker(store: RunningStore, paged_models: dict[str, PagedModel]) -> Iterator[LocalWorker]:
    """Returns a worker on the store."""
    with local_worker(
        paged_models["qwen3"], runtime_dir=store.runtime_dir, longest=LONGEST
    ) as made:
        yield made


@pytest.fixture
def warmer(worker: LocalWorker) -> Warmer:
    """Returns a warmer of the store."""
    assert worker.client is not None
    assert worker.namespace is not None
    return Warmer(worker, worker.client.admin, worker.namespace.namespace_id, 16)


def pins(worker: LocalWorker) -> dict[str, int]:
    """Returns the tokens of each named pin."""
    assert worker.client is not None
    return {each.name: each.pinned_token_count for each in worker.client.admin.named_pins()}


def test_a_prompt_is_computed_once_and_pinned(worker: LocalWorker, warmer: Warmer) -> None:
    """Warming a prompt again computes nothing, and a user of the prompt reuses all its tokens."""
    first = warmer.warm(PROMPT)
    assert (first.failure, first.tokens, first.computed_tokens) == (None, 100, 100)
    again = warmer.warm(PROMPT, ttl=60.0)
    assert (again.failure, again.computed_tokens, again.pinned_tokens) == (None, 0, 96)
    assert pins(worker) == {"warm/first": 96}
    asked = worker.engine.generate([*PROMPT.ids, 7, 8, 9], 2)
    assert (asked.matched_tokens, asked.copied_tokens) == (96, 4)


def test_a_name_goes_over_to_another_prompt(worker: LocalWorker, warmer: Warmer) -> None:
    """A name's pin holds the prompt that was warmed last."""
    other = PROMPT._replace(ids=PROMPT.ids[::-1][:50])
    assert warmer.warm(other).failure is None
    assert pins(worker) == {"warm/first": 48}


def test_the_command_says_what_it_did(store: RunningStore, tmp_path: Path) -> None:
    """The first user of a warmed chat finds all whole pages. A prompt that fails gives status 1."""
    system = Message("system", "You answer in one short sentence, and say so when you do not know.")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"name": "chat", "messages": [system._asdict()]}) + "\n")
    options = ("--model", "tiny", "--store", str(store.runtime_dir), "--longest", "256", "--json")
    for computed in (True, False):
        done = CliRunner().invoke(app, [str(file), "--cache-salt", "mine", *options])
        assert done.exit_code == 0, done.output
        (told,) = json.loads(done.stdout)["prompts"]
        assert bool(told["computed_tokens"]) == computed
        assert told["pinned_tokens"] == told["tokens"] // 16 * 16 > 0
    with local_worker(
        "tiny", runtime_dir=store.runtime_dir, longest=256, cache_salt="mine"
    ) as first:
        written = chat_format(first.model.tokenizer, first.model.end_ids)
        asked = written.message_ids([system, Message("user", "Why is the sky blue?")])
        found = first.engine.generate(asked, 2)
        assert found.matched_tokens + found.copied_tokens >= told["tokens"]
    with file.open("a") as more:
        more.write('{"prompt": "short"}')
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(file), *options[:-1]])
    assert done.exit_code == 1
    assert "shorter than a page" in done.output
    file.write_text("You are a helpful assistant.")
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(file), *options])
    assert done.exit_code == 1
    assert "line 1: it is no JSON object" in done.output


def test_what_the_disk_has_is_loaded(tmp_path: Path, paged_models: dict[str, PagedModel]) -> None:
    """After a restart nothing is computed that the disk has."""
    size = paged_models["qwen3"].layout(16).page_bytes * 32
    memory = ("--tier1-bytes", str(size), "--extent-bytes", str(size))
    disk = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(64 << 20))
    with running_store(*memory, *disk, "--tier3-write", "through") as store:

        def warmed() -> Warmed:
            with local_worker(
                paged_models["qwen3"], runtime_dir=store.runtime_dir, longest=LONGEST
            ) as worker:
                assert worker.client is not None
                assert worker.namespace is not None
                admin, namespace_id = worker.client.admin, worker.namespace.namespace_id
                warmer = Warmer(worker, admin, namespace_id, 16)
                result = warmer.warm(PROMPT)
                assert wait_until(lambda: admin.stats().tier_3.page_count == 6), store.log
                assert warmer.wait_shared([result], 60.0) == [result]
                return result

        first = warmed()
        assert (first.computed_tokens, first.disk_tokens, first.shared_tokens) == (100, 0, 0)
        store.restart()
        again = warmed()
        assert (again.failure, again.pinned_tokens) == (None, 96)
        assert (again.computed_tokens, again.disk_tokens, again.remote_tokens) == (0, 96, 0)


def test_what_is_not_pinned_says_why(worker: LocalWorker, warmer: Warmer) -> None:
    """A prompt that is too short or too long, or has no room, fails alone and says why."""
    before = pins(worker)
    short = warmer.warm(WarmPrompt(1, "short", [1, 2, 3]))
    assert (short.pinned_tokens, short.failure) == (0, "shorter than a page of 16 tokens")
    too_long = warmer.warm(WarmPrompt(2, "long", [1] * LONGEST))
    assert "longest sequence has 128" in str(too_long.failure)
    full = [warmer.warm(WarmPrompt(each, f"full {each}", [each] * 112)) for each in range(5)]
    reasons = [each.failure for each in full if each.failure is not None]
    assert reasons
    assert all("PREFIX_NOT_CACHED" in each for each in reasons)
    assert before.items() <= pins(worker).items()
    held = pins(worker)
    moved = warmer.warm(WarmPrompt(3, "full 0", [77] * 112))
    assert "PREFIX_NOT_CACHED" in str(moved.failure)
    assert pins(worker) == held
