"""A worker in a process of its own, for the workloads that two workers share."""

from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from support.workloads.engine import Batch, Driver
from support.workloads.figures import Sample

READY_SECONDS = 300.0


class Worker:
    """The other end of a worker process. A context manager. One thread uses it."""

    def __init__(
        self, name: str, model: str, runtime_dir: Path, *, longest: int, threads: int
    ) -> None:
        """Starts the process, which loads the model and attaches in the background."""
        context = get_context("spawn")
        self._pipe, remote = context.Pipe()
        arguments = (remote, name, model, runtime_dir, longest, threads)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        remote.close()

    def wait_ready(self) -> None:
        """Waits until the worker accepts requests. Raises ``RuntimeError`` if it cannot."""
        if not self._pipe.poll(READY_SECONDS):
            raise RuntimeError("a worker did not become ready")
        self._receive()

    def one(self, ids: Sequence[int], max_tokens: int) -> Sample:
        """Makes one request like ``Driver.one``, timed in the engine's process."""
        self.send([ids], max_tokens)
        return self.receive().samples[0]

    def send(self, prompts: Sequence[Sequence[int]], max_tokens: int, threads: int = 0) -> None:
        """Sends requests to run at once, on ``threads`` threads if it is not 0."""
        self._pipe.send((prompts, max_tokens, threads))

    def receive(self) -> Batch:
        """Waits for the results of the requests."""
        batch: Batch = self._receive()
        return batch

    def _receive(self) -> Any:  # noqa: ANN401 - what the other end sends
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a worker ended: {self._process.exitcode}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()


def _work(  # a process's main function
    pipe: Connection, name: str, model: str, runtime_dir: Path, longest: int, threads: int
) -> None:
    # Imported here, because the parent process does not need it.
    from inference_worker.engine.local_worker import local_worker  # noqa: PLC0415
    from inference_worker.model.device import use_threads  # noqa: PLC0415

    use_threads(threads)
    with local_worker(
        model,
        runtime_dir=runtime_dir,
        name=name,
        longest=longest,
        attach_seconds=READY_SECONDS,
    ) as worker:
        pipe.send(worker.without_store and RuntimeError(worker.without_store))
        driver = Driver(worker.engine, worker.client)
        while True:
            try:
                prompts, max_tokens, chosen = pipe.recv()
            except EOFError:
                return
            use_threads(chosen or threads)
            try:
                pipe.send(driver.many(prompts, max_tokens))
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                pipe.send(error)
