"""A worker of LMCache's server, by LMCache's own client classes, controlled by lines.

It runs in LMCache's environment, in a process of its own, and imports nothing of ours. Each line on
stdin is a JSON object with ``do``. Each gets one line on the stdout that the process was started
with. LMCache's own output goes to stderr.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

# Seconds. A call that takes longer than this ends the benchmark.
TIMEOUT = 60.0
BLOCK_TOKENS = 16


class Engine:
    """An engine's paged KV memory, registered at the server: K and V of each block by layer."""

    def __init__(self, client: Any, number: int, shape: dict[str, int]) -> None:  # noqa: ANN401  # their class
        self.model = f"model-{number}"
        self._client = client
        self._number = number
        self._chunk = int(client.get_chunk_size().result(timeout=TIMEOUT))
        blocks = shape["blocks"]
        # Block 0 means absent KV.
        size = (2, blocks + 1, BLOCK_TOKENS, shape["heads"], shape["head_dim"])
        self.layers = {
            f"layer{layer}": torch.zeros(size, dtype=torch.bfloat16)
            for layer in range(shape["layers"])
        }
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(number)) + 1
        self.block_ids = order.tolist()
        self.context = create_transfer_context(
            self.layers, instance_id=number, req_client=client, mode="engine_driven"
        )
        self.context.register(
            self.layers, self.model, 1, self._chunk // BLOCK_TOKENS, mq_timeout=TIMEOUT
        )
        kind = type(self.context.engine_driven_context).__name__
        assert kind == "EngineDrivenContextShm", f"bytes travel by {kind}, not by shared memory"

    def key(self, tokens: tuple[int, ...], request: str, worker: int | None) -> IPCCacheServerKey:
        """Returns the key of all whole chunks of a prompt."""
        return IPCCacheServerKey(
            model_name=self.model,
            world_size=1,
            worker_id=worker,
            token_ids=tokens,
            start=0,
            end=len(tokens) // self._chunk * self._chunk,
            request_id=request,
            num_kv_readers=1,
        )

    def fill(self, payload: bytes) -> None:
        """Writes the prompt's KV from the payload, in order, into K and V of each block and layer.

        The payload has page after page in kvstore's form: [layers, 2, tokens, heads, head_dim].
        """
        shape = (
            len(self.block_ids),
            len(self.layers),
            2,
            *next(iter(self.layers.values())).shape[2:],
        )
        pages = torch.frombuffer(bytearray(payload), dtype=torch.bfloat16).view(shape)
        for number, layer in enumerate(self.layers.values()):
            layer[:, self.block_ids] = pages[:, number].transpose(0, 1)

    def clear(self) -> None:
        """Clears the KV, so that later KV must have been fetched."""
        for layer in self.layers.values():
            layer.zero_()

    def digest(self) -> str:
        """Returns a digest of the prompt's KV, as pages."""
        pages = torch.stack([layer[:, self.block_ids] for layer in self.layers.values()])
        # [layers, 2, blocks, ...] to [blocks, layers, 2, ...]
        ordered = pages.permute(2, 0, 1, 3, 4, 5).contiguous()
        return hashlib.sha256(ordered.view(torch.int16).numpy().tobytes()).hexdigest()

    def blocks_of(self, key: IPCCacheServerKey) -> list[list[int]]:
        """Returns the blocks of a key's tokens, in the only group."""
        return [self.block_ids[: key.end // BLOCK_TOKENS]]

    @property
    def blocks_in_chunk(self) -> int:
        """Returns the number of blocks in a chunk of the server."""
        return self._chunk // BLOCK_TOKENS


class Worker:
    """The calls that the benchmark may make."""

    def __init__(self) -> None:
        self._client: Any = None
        self._engines: dict[str, Engine] = {}
        self._requests = count(1)
        self._first_token = count(1 << 28, 1 << 12)
        self._published: list[tuple[Engine, tuple[int, ...]]] = []

    def open(self, line: dict[str, Any]) -> dict[str, Any]:
        """Connects to ``url`` and registers one engine for each of ``engines``."""
        self._client = RequestClientFactory.create(line["url"])
        assert self._client.noop().result(timeout=TIMEOUT) == "OK"
        for number, (name, shape) in enumerate(line["engines"].items()):
            self._engines[name] = Engine(self._client, number + 1, shape)
        return {"chunk_tokens": int(self._client.get_chunk_size().result(timeout=TIMEOUT))}

    def publish(self, line: dict[str, Any]) -> dict[str, Any]:
        """Caches a prompt of that many tokens, with the KV of the file ``payload`` if given."""
        engine, tokens = self._engines[line["engine"]], prompt_of(line["tokens"])
        if "payload" in line:
            with open(line["payload"], "rb") as file:  # noqa: PTH123  # one line, as it is
                engine.fill(file.read())
        self._published.append((engine, tokens))
        self._store(engine, tokens)
        return {}

    def verify(self, line: dict[str, Any]) -> dict[str, Any]:
        """Fetches once into cleared memory. Returns its digest and the tokens hit."""
        engine = self._engines[line["engine"]]
        engine.clear()
        hit = self._fetch(engine, prompt_of(line["tokens"]), [])
        return {"digest": engine.digest(), "tokens_hit": hit}

    def threads(self, line: dict[str, Any]) -> dict[str, Any]:
        """Sets the number of threads with which torch copies."""
        torch.set_num_threads(line["count"])
        return {}

    def empty(self, line: dict[str, Any]) -> dict[str, Any]:
        """Times round trips that do nothing."""

        def once() -> list[int]:
            began = time.perf_counter_ns()
            self._client.noop().result(timeout=TIMEOUT)
            return [time.perf_counter_ns() - began]

        return repeat(line, ("whole",), once)

    def hit(self, line: dict[str, Any]) -> dict[str, Any]:
        """Times the control path of a hit: lookup, result, prepare, commit. No bytes are copied."""
        engine, tokens = self._engines[line["engine"]], prompt_of(line["tokens"])

        def once() -> list[int]:
            request = f"hit-{next(self._requests)}"
            lookup, retrieve = engine.key(tokens, request, None), engine.key(tokens, request, 0)
            context = engine.context.engine_driven_context
            began = time.perf_counter_ns()
            self._client.lookup(lookup, 1).result(timeout=TIMEOUT)
            chunks = self._client.wait_prefetch_status(request, TIMEOUT).result(timeout=TIMEOUT)
            found = time.perf_counter_ns()
            slots = context.prepare_retrieve(retrieve, engine.context._instance_id)  # noqa: SLF001
            assert slots is not None
            done = context.commit_retrieve(retrieve, engine.context._instance_id)  # noqa: SLF001
            ended = time.perf_counter_ns()
            assert done
            assert len(slots) == chunks == retrieve.end // (engine.blocks_in_chunk * BLOCK_TOKENS)
            self._end(request)
            return [ended - began, found - began]

        return repeat(line, ("whole", "lookup"), once)

    def row(self, line: dict[str, Any]) -> dict[str, Any]:
        """Times ``hits`` consecutive hits and their ends, which are sent without waiting.

        All answers are read within the time. ``whole`` is a hit's part of it.
        """
        engine, tokens = self._engines[line["engine"]], prompt_of(line["tokens"])
        context = engine.context.engine_driven_context

        def once() -> list[int]:
            ending: list[Any] = []
            began = time.perf_counter_ns()
            for _ in range(line["hits"]):
                request = f"hit-{next(self._requests)}"
                lookup, retrieve = engine.key(tokens, request, None), engine.key(tokens, request, 0)
                self._client.lookup(lookup, 1).result(timeout=TIMEOUT)
                self._client.wait_prefetch_status(request, TIMEOUT).result(timeout=TIMEOUT)
                slots = context.prepare_retrieve(retrieve, engine.context._instance_id)  # noqa: SLF001
                assert slots is not None
                assert context.commit_retrieve(retrieve, engine.context._instance_id)  # noqa: SLF001
                ending.append(self._client.end_session(request))
            for each in ending:
                each.result(timeout=TIMEOUT)
            return [(time.perf_counter_ns() - began) // line["hits"]]

        return repeat(line, ("whole",), once)

    def fetch(self, line: dict[str, Any]) -> dict[str, Any]:
        """Times a hit whose bytes are copied into the engine's memory."""
        engine, tokens = self._engines[line["engine"]], prompt_of(line["tokens"])

        def once() -> list[int]:
            times: list[int] = []
            self._fetch(engine, tokens, times)
            return times

        return repeat(line, ("whole", "lookup"), once)

    def store(self, line: dict[str, Any]) -> dict[str, Any]:
        """Times storing a new prompt's KV from the engine's memory. Removes it afterwards."""
        engine, tokens = self._engines[line["engine"]], prompt_of(line["tokens"])

        def once() -> list[int]:
            first = next(self._first_token)
            new = (first, *tokens[1:])
            began = time.perf_counter_ns()
            self._store(engine, new)
            took = time.perf_counter_ns() - began
            self._client.clear().result(timeout=TIMEOUT)
            return [took]

        times = repeat(line, ("whole",), once)
        for each, published in self._published:
            self._store(each, published)
        return times

    def _store(self, engine: Engine, tokens: tuple[int, ...]) -> None:
        request = f"store-{next(self._requests)}"
        key = engine.key(tokens, request, 0)
        stored = engine.context.submit_store(
            request, key, engine.layers, engine.blocks_of(key), None, engine.blocks_in_chunk
        )
        assert stored.result(timeout=TIMEOUT)

    def _fetch(self, engine: Engine, tokens: tuple[int, ...], times: list[int]) -> int:
        request = f"fetch-{next(self._requests)}"
        lookup, retrieve = engine.key(tokens, request, None), engine.key(tokens, request, 0)
        blocks = engine.blocks_of(retrieve)
        began = time.perf_counter_ns()
        self._client.lookup(lookup, 1).result(timeout=TIMEOUT)
        chunks = self._client.wait_prefetch_status(request, TIMEOUT).result(timeout=TIMEOUT)
        found = time.perf_counter_ns()
        fetched = engine.context.submit_retrieve(
            request, retrieve, engine.layers, blocks, None, engine.blocks_in_chunk
        ).result(timeout=TIMEOUT)
        ended = time.perf_counter_ns()
        assert fetched
        hit = int(chunks) * engine.blocks_in_chunk * BLOCK_TOKENS
        assert hit == retrieve.end, f"{hit} tokens hit of {retrieve.end}"
        self._end(request)
        times += [ended - began, found - began]
        return hit

    def _end(self, request: str) -> None:
        """Ends the request at the server, untimed. Their connector does not wait for it either."""
        self._client.end_session(request).result(timeout=TIMEOUT)


def prompt_of(token_count: int) -> tuple[int, ...]:
    """Returns the prompt of this length."""
    return tuple(range(token_count, 2 * token_count))


def repeat(
    line: dict[str, Any], names: tuple[str, ...], once: Callable[[], list[int]]
) -> dict[str, Any]:
    """Repeats a call for ``seconds``, at least ``least`` times. Returns nanoseconds by name."""
    rows: list[list[int]] = []
    end = time.monotonic() + line["seconds"]
    while len(rows) < line["least"] or (time.monotonic() < end and len(rows) < line["most"]):
        rows.append(once())
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def main() -> None:
    """Answers lines until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker()
    for text in sys.stdin:
        line = json.loads(text)
        answers.write(json.dumps(getattr(worker, line["do"])(line)) + "\n")


if __name__ == "__main__":
    main()
