"""``kvstore-worker serve`` with a store of its own: warmed, stopped and killed."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import typer
from openai import OpenAI
from typer.testing import CliRunner

from inference_worker.commands.warm import warm
from kvstore_client import connect_admin
from kvstore_client.testing import wait_until

SYSTEM = "You answer in one short sentence, and you say so when you do not know the answer."
PATIENCE = 120.0
URL = re.compile(r"http://127\.0\.0\.1:[1-9][0-9]*")
app = typer.Typer()
app.command("warm")(warm)


@app.callback()
def program() -> None:
    """Keeps the command's name in this test."""


OPTIONS = ("--model", "tiny", "--longest", "512", "--threads", "1")


def children(pid: int) -> list[int]:
    """Returns the child processes of a process while it lives."""
    with suppress(FileNotFoundError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
        return [int(each) for each in text.split()]
    return []


def gone(pids: list[int]) -> bool:
    """Returns whether all these processes are gone. A zombie counts as gone."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            if stat.rsplit(")", 1)[1].split()[0] != "Z":
                return False
    return True


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the program with a store of its own, and kills it at the end if it still runs."""
    command = [sys.executable, "-m", "inference_worker", "serve", *OPTIONS]
    command += ["--port", "0", "--start-store", "--store", str(folder)]
    command += ["--prefix-cache-backend", "hash", "--prefix-cache-max-pages", "64"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Waits until the program serves, and returns its address."""

    def found() -> bool:
        assert process.poll() is None, log.read_text()
        return URL.search(log.read_text()) is not None

    assert wait_until(found, PATIENCE), log.read_text()
    match = URL.search(log.read_text())
    assert match is not None
    return match[0]


def warmed(folder: Path, file: Path) -> dict[str, Any]:
    """Runs ``kvstore-worker warm`` on the same store, and returns the result of the one prompt."""
    command = ["warm", str(file), *OPTIONS, "--store", str(folder), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["prompts"]
    return dict(told)


def test_it_serves_what_was_warmed_and_ends_when_told(tmp_path: Path) -> None:
    """A warmed chat's first user hits all of it, and SIGTERM lets a stream finish."""
    folder, log, file = tmp_path / "run", tmp_path / "log", tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "system", "content": SYSTEM}]}))
    with serving(folder, log) as process:
        url = address(process, log)
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        with connect_admin(folder) as admin:
            assert admin.capabilities().prefix_cache_backend == "hash"
            names = {each.identity.display_name for each in admin.namespaces()}
        assert names == {"tiny"}
        shown = httpx2.get(f"{url}/metrics").text
        assert "kvstore_worker_engines_attached 1.0" in shown
        assert f"KVSTORE_RUNTIME_DIR={folder} kvstore-ctl top" in log.read_text()
        assert wait_until(lambda: "engine-0 has a store" in log.read_text())
        told = warmed(folder, file)
        assert told["pinned_tokens"] >= 64
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Why is the sky blue?"},
        ]
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            ask = partial(
                client.chat.completions.create, model="tiny", temperature=0, messages=messages
            )
            usage = ask(max_tokens=1).usage
            assert usage.prompt_tokens_details.cached_tokens >= told["pinned_tokens"]
            started = children(process.pid)
            assert len(started) == 2  # an engine and a store
            pieces = iter(ask(max_tokens=200, stream=True))
            next(pieces)
            process.terminate()
            assert [each.choices[0].finish_reason for each in pieces][-1] == "length"
        assert process.wait(PATIENCE) == 0, log.read_text()
        assert wait_until(lambda: gone(started))
    assert "Traceback" not in log.read_text()


def test_kill_leaves_no_process(tmp_path: Path) -> None:
    """The kernel ends the program's children when it is killed, also one that loads a model."""
    log = tmp_path / "log"
    with serving(tmp_path / "run", log) as process:
        started: list[int] = []

        def starts() -> bool:
            assert process.poll() is None, log.read_text()
            started[:] = children(process.pid)
            return bool(started)

        assert wait_until(starts, PATIENCE)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wait_until(lambda: gone(started))
