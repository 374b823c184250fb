"""Dynamo's standalone indexer, a process that follows KV events and answers queries."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from kvstore_client.testing import wait_until
from support.loopback import HOST, free_ports
from support.routing.sglang_router import PYTHON

START_SECONDS = 60.0
STOP_SECONDS = 15.0
MODEL = "m"


class Found(NamedTuple):
    """The longest prefix of a query by the nearest medium, in tokens. Each includes the last."""

    gpu: int
    cpu: int
    disk: int


class DynamoIndexer:
    """A running ``dynamo.indexer`` on loopback. One thread uses it."""

    def __init__(self, log: Path) -> None:
        """Starts it, and waits until it answers."""
        [self._port] = free_ports(1)
        self._log = log
        command = [str(PYTHON), "-m", "dynamo.indexer", "--port", str(self._port), "--threads", "1"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        wait_until(lambda: self._process.poll() is not None or self._is_well(), START_SECONDS)
        assert self._is_well(), self.log

    @property
    def log(self) -> str:
        """Its log so far."""
        return self._log.read_text(errors="replace")

    def register(self, instance: int, events: str, replay: str | None, page_tokens: int) -> None:
        """Makes it follow somebody's events, and ask for lost ones at ``replay``, if given."""
        registered = {
            "instance_id": instance,
            "endpoint": events,
            "replay_endpoint": replay,
            "model_name": MODEL,
            "block_size": page_tokens,
        }
        self._post("/register", {k: v for k, v in registered.items() if v is not None})

    def find(self, instance: int, tokens: list[int], **more: object) -> Found:
        """Returns the longest prefix that it knows at an instance."""
        body = {"token_ids": tokens, "model_name": MODEL, **more}
        answer: dict[str, Any] = self._post("/query", body)
        found = answer["instances"].get(str(instance), {})
        return Found(*(found.get(each, 0) for each in Found._fields))

    def close(self) -> None:
        """Ends it, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        with closing(HTTPConnection(HOST, self._port, timeout=30.0)) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status < 300, (path, answer.status, content, self.log)
            return json.loads(content or b"null")

    def _is_well(self) -> bool:
        with closing(HTTPConnection(HOST, self._port, timeout=1.0)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except (OSError, HTTPException):
                return False


@contextmanager
def dynamo_indexer(folder: Path) -> Iterator[DynamoIndexer]:
    """Runs an indexer until the block ends."""
    with closing(DynamoIndexer(folder / "indexer.log")) as indexer:
        yield indexer
