"""The worker's commands: one prompt, a chat over a pipe, and the transformers example."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.model.tiny import build_llama
from kvstore_client.testing import RunningStore, running_store, wait_until

PATIENCE = 120.0
EXAMPLES = Path(__file__).parents[2] / "clients" / "python" / "examples"
TINY = ["--model", "tiny", "--longest", "1000"]
QUESTIONS = "What is a page?\nWho may write it, and when is that over?\n"
pytestmark = pytest.mark.store("--tier1-bytes", "32MiB")


def worker(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs kvstore-worker to its end with ``given`` on stdin."""
    return subprocess.run(
        [sys.executable, "-m", "inference_worker", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def turns(*arguments: str) -> list[dict[str, Any]]:
    """Chats over a pipe and returns the figures of each turn."""
    options = ("--max-tokens", "24", "--json", "--compare")
    done = worker("chat", *TINY, *options, *arguments, given=QUESTIONS)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_chat_goes_on_from_its_turns(store: RunningStore, tmp_path: Path) -> None:
    """A chat's second turn matches the first one's pages, and has the same text without a store."""
    cold, later = turns("--store", str(store.runtime_dir))
    assert cold["matched_tokens"] == 0
    assert later["matched_tokens"] >= cold["prompt_tokens"] // PAGE_TOKENS * PAGE_TOKENS
    assert min(cold["alone_ms"], later["alone_ms"]) > 0
    absent = ("--runtime-dir", str(tmp_path / "none"), "--max-tokens", "24")
    done = worker("chat", *TINY, *absent, given=QUESTIONS)
    assert "no store" in done.stderr
    assert done.stdout.count("[matched 0 + copied 0, prefilled") == 2
    assert cold["text"] in done.stdout
    assert later["text"] in done.stdout


def test_a_prompt_is_continued(store: RunningStore, tmp_path: Path) -> None:
    """A prompt from a file and from stdin gives the same text, and JSON has the figures."""
    prompt = "A page is the KV of one page-aligned run of tokens."
    (tmp_path / "prompt").write_text(prompt)
    here = ("generate", *TINY, "--max-tokens", "9", "--store", str(store.runtime_dir))
    first = worker(*here, "--file", str(tmp_path / "prompt"))
    assert first.returncode == 0, first.stderr
    second = worker(*here, "--json", given=f"{prompt}\n")
    found = json.loads(second.stdout)
    assert first.stdout == f"{found['text']}\n"
    assert (found["prompt_tokens"], found["matched_tokens"]) == (len(prompt), 48)
    assert len(found["output_ids"]) == 9


def test_a_prompt_longer_than_the_store_is_reused_in_part() -> None:
    """A prompt longer than the store is cached in part, and the next process reuses that part."""
    with running_store("--tier1-bytes", "512KiB", "--extent-bytes", "512KiB") as small:
        here = ("generate", *TINY, "--max-tokens", "2", "--json", "--store", str(small.runtime_dir))
        first, second = (json.loads(worker(*here, "A page. " * 50).stdout) for _ in range(2))
    assert (first["store_failure"], first["matched_tokens"]) == (None, 0)
    assert second["matched_tokens"] == PAGE_TOKENS * len(first["published_pages"]) > 0
    assert second["output_ids"] == first["output_ids"]


def test_an_experiment_shows_its_table() -> None:
    """An experiment starts its own store and prints its figures beside the published ones."""
    done = worker("experiment", "saved-prefill", "--model", "tiny")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["without", "0", "0", "102", "121", "121"] in rows
    assert ["with", "96", "1", "5", "24", "25"] in rows


def test_what_cannot_be_done_is_a_line(tmp_path: Path) -> None:
    """A command that fails ends with status 1 and its reason, without a traceback."""
    none = ("--runtime-dir", str(tmp_path))
    done = worker("generate", "--model", "/nowhere", *none, "A prompt.")
    assert done.returncode == 1
    assert "/nowhere is neither a folder" in done.stderr
    assert "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    """Returns the child processes of a process, of all its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for task in tasks for each in task.read_text().split()]


def test_sigterm_ends_the_store_that_a_chat_started() -> None:
    """SIGTERM ends a chat together with the store that it started."""
    command = [sys.executable, "-m", "inference_worker", "chat", *TINY, "--start-store", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("Hello\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["store_failure"] is None
            (store,) = children(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert wait_until(lambda: not Path(f"/proc/{store}").exists())
    with pytest.raises(ProcessLookupError):
        os.kill(store, 0)


def test_generate_starts_from_what_another_process_saved(
    store: RunningStore, tmp_path: Path
) -> None:
    """The example's second run computes one token of its prompt and prints the same text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained(tmp_path)
    build_llama().save_pretrained(tmp_path)
    program = [sys.executable, "-m", "generate_with_transformers"]

    def run() -> tuple[list[str], list[str]]:
        done = subprocess.run(
            [*program, str(tmp_path), str(store.runtime_dir)],
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return lines[0::2], lines[1::2]

    said, cached = run()
    assert cached == ["  0 of 896 tokens were cached", "  882 of 900 tokens were cached"]
    assert run() == (
        said,
        ["  895 of 896 tokens were cached", "  899 of 900 tokens were cached"],
    )
