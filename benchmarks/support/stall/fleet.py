"""The processes of stall.py, each with one worker that repeats requests."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Self

from kvstore_client.testing import wait_until
from support.stall.figures import Request
from support.stall.load import PROMPTS, Load, light, now

LIGHT, ENGINE = "light", "engine"
# Seconds between two requests of a worker.
PAUSES = {LIGHT: 0.05, ENGINE: 0.2}
# One in that many requests is made without the store, for comparison.
WITHOUT_STORE_EVERY = 3
# Seconds.
READY_TIMEOUT = 120.0
HIT_TIMEOUT = 120.0


class Fleet:
    """Worker processes under load, until :meth:`stop`."""

    def __init__(self, runtime_dir: Path, counts: dict[str, int]) -> None:
        context = get_context("spawn")
        self._ending = context.Event()
        self._hits = [context.Value("d", 0.0) for _ in range(sum(counts.values()))]
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        self._pipes: list[Connection] = []
        self._processes = []
        for number, (kind, hit) in enumerate(zip(kinds, self._hits, strict=True)):
            pipe, remote = context.Pipe()
            arguments = (remote, runtime_dir, kind, f"{kind}-{number}", self._ending, hit)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            remote.close()
            self._pipes.append(pipe)
            self._processes.append(process)

    def wait_hits(self, since: float) -> bool:
        """Waits until each worker has a hit after this time. Returns False if one has none."""
        timeout = HIT_TIMEOUT if since else READY_TIMEOUT
        return wait_until(lambda: all(each.value > since for each in self._hits), timeout)

    def stop(self) -> list[Request]:
        """Ends the load and the processes. Returns the results of each request."""
        self._ending.set()
        requests = [request for pipe in self._pipes for request in pipe.recv()]
        for each in self._processes:
            each.join()
        return requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.kill()
            each.join()


def _work(  # a process's main function
    pipe: Connection,
    runtime_dir: Path,
    kind: str,
    name: str,
    ending: Event,
    last_hit: "Synchronized[float]",
) -> None:
    requests = []
    with _attach(kind)(runtime_dir, name) as load:
        for number in range(PROMPTS):  # the right answers, before all others
            load.request(number, use_store=False)
        count = 0
        while not ending.wait(PAUSES[kind]):
            count += 1
            use_store = count % WITHOUT_STORE_EVERY != 0
            begin = now()
            answer = load.request(count, use_store=use_store)
            end = now()
            if answer.hit:
                last_hit.value = begin
            requests.append(Request(kind, name, begin, end, use_store, *answer))
    pipe.send(requests)


def _attach(kind: str) -> Callable[[Path, str], AbstractContextManager[Load]]:
    if kind == LIGHT:
        return light
    from support.stall.engine import with_model  # noqa: PLC0415  # light workers go without torch

    return with_model
