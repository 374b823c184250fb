"""The one thread of a process on which CUDA opens and closes memory."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class DeviceThread:
    """Does what it is given, one after the other, for as long as the process lives."""

    def __init__(self) -> None:
        # Its put may interrupt itself, so memory's last view may be dropped anywhere.
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._run, name="kvstore-client-cuda", daemon=True).start()

    def run(self, work: Callable[[], T]) -> T:
        """Have work done, and return or raise what came of it. Not on the thread itself."""
        future: Future[T] = Future()

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
                future.set_exception(error)

        self._queue.put(do)
        return future.result()

    def post(self, work: Callable[[], None]) -> None:
        """Have work done later. Never waits; what it raises is logged."""
        self._queue.put(work)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            try:
                work()
            except Exception:
                _logger.exception("device_work_failed")
            # Not kept until there is more to do: it may be a mapping's last view.
            del work
