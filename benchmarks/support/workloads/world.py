"""The same engine four times: without the store, with it, as two workers, and the ideal."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.local_worker import model_namespace
from inference_worker.model.model import PagedModel
from kvstore_client import Client, ClientConfig, Namespace
from kvstore_client.testing import running_store
from support.workloads.child import Worker
from support.workloads.engine import Batch, Driver
from support.workloads.figures import Sample
from support.workloads.plan import Plan
from support.workloads.ready import ReadyNamespace

WITHOUT, STORE, TWO, IDEAL = "without", "store", "two workers", "ideal"
# Tokens of the store's memory. A full run computes fewer, so nothing is evicted.
STORE_TOKENS: Final = 110_000
MEBIBYTE: Final = 1 << 20
# Seconds for a busy machine. The cost of a store that hangs is not measured here.
PATIENCE: Final = 10.0
OPEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """The variants. ``workers`` are two processes on the store, or none."""

    without: Driver
    store: Driver
    ideal: Driver
    ready: ReadyNamespace
    # The ideal's namespace for prefixes, which the other variants have to compute.
    prepared: Namespace
    publisher: Driver
    workers: Sequence[Worker]
    threads: int

    @property
    def names(self) -> list[str]:
        """The names of the variants. The others are compared with the first."""
        return [WITHOUT, STORE, *([TWO] if self.workers else []), IDEAL]

    def one(self, name: str, ids: Sequence[int], max_tokens: int, worker: int) -> Sample:
        """Makes one request of a variant. ``worker`` is its worker's number if there are two."""
        if name == TWO:
            return self.workers[worker].one(ids, max_tokens)
        return self._driver(name).one(ids, max_tokens)

    def many(
        self, name: str, prompts: Sequence[Sequence[int]], max_tokens: int, whose: Sequence[int]
    ) -> Batch:
        """Makes requests of a variant at once. ``whose`` has the worker of each, for two workers.

        Two workers share the cores then.
        """
        if name != TWO:
            return self._driver(name).many(prompts, max_tokens)
        for number, worker in enumerate(self.workers):
            own = [ids for ids, each in zip(prompts, whose, strict=True) if each == number]
            worker.send(own, max_tokens, max(1, self.threads // len(self.workers)))
        batches = [worker.receive() for worker in self.workers]
        rest = [iter(batch.samples) for batch in batches]
        samples = [next(rest[each]) for each in whose]
        return Batch(max(batch.seconds for batch in batches), samples)

    def _driver(self, name: str) -> Driver:
        return {WITHOUT: self.without, STORE: self.store, IDEAL: self.ideal}[name]


@contextmanager
def workload_world(
    name: str, model: PagedModel, plan: Plan, *, two_workers: bool, threads: int
) -> Iterator[World]:
    """Starts a store, an engine of each kind in this process, and two workers in others.

    ``name`` is the model's name for the workers. Each process computes with ``threads`` threads.
    """
    longest = max(plan.longest, plan.batch_tokens // plan.batch.requests)
    size = _store_bytes(model)
    with ExitStack() as stack:
        store = stack.enter_context(
            running_store("--tier1-bytes", str(size), "--extent-bytes", str(size))
        )
        workers = [
            stack.enter_context(
                Worker(each, name, store.runtime_dir, longest=longest, threads=threads)
            )
            for each in ("a", "b")
            if two_workers
        ]
        config = ClientConfig(display_name="workloads", call_timeout=PATIENCE)
        client = stack.enter_context(Client(store.runtime_dir, config))
        base = model_namespace(client, model, PAGE_TOKENS, "two workers")
        own, prepared = (
            client.namespace(replace(base.identity, salt=salt, display_name="one"), base.layout)
            for salt in (b"one worker", b"prepared")
        )
        for each in (own, prepared):
            if not each.wait_open(OPEN_SECONDS):
                raise RuntimeError(f"not opened: {each.failure}")
        ready = ReadyNamespace(own)
        stack.callback(ready.release)
        room = max(longest, plan.batch_tokens)

        def driver(namespace: Any, private_tokens: int) -> Driver:  # noqa: ANN401 - or what stands for one
            engine = Engine(
                model,
                cast("Namespace | None", namespace),
                longest=longest,
                private_tokens=private_tokens,
            )
            return Driver(engine, client if namespace else None)

        world = World(
            without=driver(None, room),
            store=driver(own, longest),
            ideal=driver(ready, room),
            ready=ready,
            prepared=prepared,
            publisher=driver(prepared, longest),
            workers=workers,
            threads=threads,
        )
        for worker in workers:
            worker.wait_ready()
        yield world


def _store_bytes(model: PagedModel) -> int:
    """Returns the store's size in whole MiB: at most a quarter of this machine's memory."""
    page_bytes = model.layout(PAGE_TOKENS).page_bytes
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = min(STORE_TOKENS // PAGE_TOKENS * page_bytes, memory // 4)
    return -(-wanted // MEBIBYTE) * MEBIBYTE
