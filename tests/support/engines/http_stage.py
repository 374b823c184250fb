"""A real ``kvstore-worker serve`` on a real store, for tests with the openai client."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from openai import OpenAI
from openai.types.chat import ChatCompletion

from engines.engine_world import NOTHING, left_at
from kvstore_client import connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until
from processes.forked_programs import NESTED

PATIENCE = 120.0
LONGEST = 2048
# Two users, who share nothing.
KEYS = {"ann": "ann-has-a-long-key", "bob": "bob-has-a-long-key"}
URL = re.compile(r"http://127\.0\.0\.1:[1-9][0-9]*")
# One request runs and two wait; prompts come in many pieces, so that they can be cut.
OPTIONS = ("--model", "tiny", "--longest", str(LONGEST), "--threads", "1", "--max-step-tokens")
OPTIONS += ("64", "--max-running", "1", "--max-waiting", "2", "--port", "0")


class HttpStage:
    """A server, its store, and what both count. One thread uses it."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, store: RunningStore) -> None:
        """Waits until it serves."""
        self._process = process
        self._log = log
        self.store = store
        assert wait_until(self._serves, PATIENCE), log.read_text()
        match = URL.search(log.read_text())
        assert match is not None
        self.url = match[0]

    def client(self, user: str = "ann") -> OpenAI:
        """Returns a client that tries nothing twice."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=KEYS[user], max_retries=0)

    def counters(self) -> "Counter[str]":
        """Returns all that the store counts of what was asked of it, by the contract's names."""
        with connect_admin(self.store.runtime_dir) as admin:
            found = admin.stats().counters
        return Counter({field.name: value for field, value in found.ListFields()})

    def metric(self, name: str) -> float:
        """Returns the value of one of the server's metrics, 0 where it does not show it yet."""
        shown = httpx2.get(f"{self.url}/metrics").text
        values = [line.split()[-1] for line in shown.splitlines() if line.startswith(f"{name} ")]
        return float(values[0]) if values else 0.0

    def running(self) -> float:
        """Returns how many requests have pages."""
        return self.metric("kvstore_worker_num_requests_running")

    def settled(self) -> bool:
        """Tell whether nothing runs or waits, and nothing is held: each slot is cached or free."""
        return wait_until(
            lambda: (
                self.running() == 0
                and self.metric("kvstore_worker_num_requests_waiting") == 0
                and left_at(self.store.runtime_dir) == NOTHING
                and self._slots_are_back()
            )
        )

    def _slots_are_back(self) -> bool:
        with connect_admin(self.store.runtime_dir) as admin:
            arenas = admin.stats().arenas
        return all(
            each.cached_slot_count + each.free_slot_count == each.slot_count for each in arenas
        )

    def _serves(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return URL.search(self._log.read_text()) is not None


@contextmanager
def http_stage(folder: Path) -> Iterator[HttpStage]:
    """Runs both until the block ends."""
    keys, log = folder / "keys", folder / "log"
    keys.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    with running_store("--tier1-bytes", "64MiB") as store:
        command = [sys.executable, "-m", "inference_worker", "serve", *OPTIONS]
        command += ["--api-keys", str(keys), "--store", str(store.runtime_dir)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env={**os.environ, NESTED: "1"}, stdout=out, stderr=out
            )
        try:
            yield HttpStage(process, log, store)
            process.terminate()
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def cached(answer: ChatCompletion | Any) -> int:  # noqa: ANN401 - or a completion, or a chunk
    """Returns how many tokens of a prompt an answer found cached."""
    details = answer.usage.prompt_tokens_details
    return int(details.cached_tokens)
