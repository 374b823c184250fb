"""The commands of a worker process in the tests on a device."""

import os
import signal
from functools import partial

import torch

from device.launches import LAUNCHES, EndlessWrites, StreamWait
from device.pages import IDENTITY, LAYOUT, holds, page_count, write_page
from inference_worker.model.device import DeviceWork
from kvstore_client import Acquired, Client, ClientConfig, Match, Namespace, PageRef, errors
from kvstore_client.memory.cuda.mapped_memory import cuda_memory
from kvstore_client.testing import wait_until

LIMIT = 60.0
# A tenth of a second of a device's clock.
CYCLES = 200_000_000


class DeviceWorker:
    """Holds one match and one acquired sequence at a time, and perhaps a view of a page."""

    def __init__(self, client: Client, namespace: Namespace, stream_wait: StreamWait) -> None:
        self._client = client
        self._namespace = namespace
        self._stream_wait = stream_wait
        self._match = Match()
        self._acquired = Acquired(Match())
        self._tokens: list[int] = []
        self._view: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []

    def settle(self) -> None:
        """Leaves nothing to wait for: the tests say when to release."""

    # The whole of a request.

    def write(self, tokens: list[int]) -> list[PageRef]:
        """Insert the pages of a sequence that are not cached, and return where all of them are."""
        self.acquire(tokens)
        pages = self.insert()
        self._acquired.release()
        return pages

    def peek(self, tokens: list[int]) -> int:
        """Returns how many tokens a match would cover."""
        return self._namespace.peek(tokens)

    # Step by step.

    def acquire(self, tokens: list[int]) -> int:
        """Match, reserve and write the rest, keep both, and return how many tokens matched."""
        self._tokens = tokens
        self._acquired = self._namespace.acquire(tokens, total_page_count=page_count(tokens))
        assert self._acquired.failure is None, self._acquired.failure
        self._write_reserved(tokens)
        return self._acquired.match.token_count

    def reserved(self) -> list[PageRef]:
        """Returns the slots of the kept reservation."""
        return [] if self._acquired.reservation is None else self._acquired.reservation.pages

    def insert(self) -> list[PageRef]:
        """Inserts what was written, and returns where the sequence's pages are."""
        match, reservation = self._acquired.match, self._acquired.reservation
        if reservation is None:
            return list(match.pages)
        start, end = match.token_count, page_count(self._tokens) * LAYOUT.page_tokens
        inserted = reservation.insert(self._tokens[start:end], position=start, base=match)
        return [*match.pages, *inserted.pages]

    def give_up(self) -> None:
        """Releases what ``acquire`` keeps."""
        self._acquired.release()

    def copy_source(self, tokens: list[int]) -> tuple[int, bool]:
        """Copy the page that another sequence shares a part of; return that part, and if it is."""
        with self._namespace.acquire(tokens, total_page_count=page_count(tokens)) as acquired:
            source, reservation = acquired.match.source, acquired.reservation
            assert source is not None
            assert reservation is not None
            self._namespace.copy_page(source, reservation.pages[0])
            places = (reservation.pages[0], source.page)
            # As integers: some of the numbers are none as bfloat16, and differ from themselves.
            pages = [self._namespace.page_tensor(each).view(torch.int16) for each in places]
            return source.token_count, torch.equal(*pages)

    def hold(self, tokens: list[int]) -> int:
        """Match, keep the match, and return how many tokens it has."""
        self._tokens, self._match = tokens, self._namespace.match(tokens)
        return self._match.token_count

    def reads_right(self) -> bool:
        """Returns whether the match that is kept holds what was written for its tokens."""
        assert self._match.pages
        return holds(self._namespace, self._tokens, self._match.pages)

    def release(self) -> None:
        """Releases the match that is kept."""
        self._match.release()

    # Views, devices, processes.

    def keep_view(self) -> None:
        """Keeps a view of the first matched page."""
        self._view = self._namespace.page_tensor(self._match.pages[0])

    def view_sum(self) -> float:
        """Returns the sum of the kept view's numbers."""
        assert self._view is not None
        return float(self._view.view(torch.int16).sum())

    def drop_view(self) -> None:
        """Drops the view that is kept."""
        self._view = None

    def keep_views(self, pages: list[PageRef]) -> None:
        """Keeps views of pages that are not held."""
        self._views = [self._numbers(page) for page in pages]

    def view_sums(self) -> list[int]:
        """Returns the sum of each kept view's numbers."""
        return [int(view.to(torch.int64).sum()) for view in self._views]

    def drop_views(self) -> None:
        """Drops all views that are kept."""
        self._views = []

    def release_with_work_under_way(self) -> bool:
        """Releases while the device works, and tells whether it was done by then."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
        busy = not stream.query()
        self._match.release()
        return busy and stream.query()

    def write_without_end(self) -> bool:
        """Write a reserved page without end; returns, once enough is queued, whether that is so."""
        # As integers: adding one to a large number of bfloat16 leaves it as it is.
        numbers = self._numbers(self.reserved()[0])
        writes = EndlessWrites(numbers)
        return wait_until(lambda: writes.unfinished >= LAUNCHES, LIMIT)

    def page_changes(self, page: PageRef) -> bool:
        """Returns whether the page changes: wait for ten changes of its first number."""
        return all(self._changes(page) for _ in range(10))

    def page_stays(self, page: PageRef) -> bool:
        """Returns whether a page has the same first number in a hundred readings."""
        return len({int(self._numbers(page)[0]) for _ in range(100)}) == 1

    def overwrite(self, number: int) -> None:
        """Overwrites a page of the match that is kept, which no worker may do."""
        self._numbers(self._match.pages[number]).add_(1)
        self._wait_for_device()

    def insert_beside_busy_stream(self, tokens: list[int]) -> bool:
        """Writes and insert pages on their own stream, while the default one works.

        Returns whether the default stream still works when the insert has returned. The client
        waits only for the other stream. A CPU has no streams.
        """
        self._tokens = tokens
        self._acquired = self._namespace.acquire(tokens, total_page_count=page_count(tokens))
        device = self._numbers(self.reserved()[0]).device
        if device.type == "cpu":
            self._write_reserved(tokens)
            self.insert()
            return True
        side, default = torch.cuda.Stream(device), torch.cuda.default_stream(device)
        with torch.cuda.stream(side):
            self._stream_wait.work = DeviceWork(device)
            # Loads the kernels and fills torch's pool of the stream: either may wait for a device.
            self._write_reserved([token + 1 for token in tokens])
            self._wait_for_device()
            with torch.cuda.stream(default):
                torch.cuda._sleep(20 * CYCLES)
            torch.cuda._sleep(CYCLES)
            self._write_reserved(tokens)
            self.insert()
            return not default.query()

    def reads_right_by_stream(self) -> bool:
        """As ``reads_right``, by a stream that is not the default one."""
        if self.device_type() == "cpu":
            return self.reads_right()
        with torch.cuda.stream(torch.cuda.Stream()):
            return self.reads_right()

    def device_type(self) -> str:
        """Returns the kind of device that torch says the kept match is on."""
        return self._namespace.page_tensor(self._match.pages[0]).device.type

    def opened(self) -> int:
        """Returns how many handles of CUDA's are open."""
        return len(cuda_memory()._opened)

    def wait_opened(self, count: int) -> bool:
        """Waits until so many handles are open."""
        return wait_until(lambda: self.opened() == count, LIMIT)

    def wait_matched(self, tokens: list[int]) -> bool:
        """Waits until a match has all of them: the store knows what is mapped by then."""

        def matched() -> bool:
            with self._namespace.match(tokens) as match:
                return match.token_count == len(tokens) - 1

        return wait_until(matched, LIMIT)

    def bytes_raise(self) -> bool:
        """Returns whether asking for a page's bytes raises the error of a device's memory."""
        try:
            self._namespace.page(self._match.pages[0])
        except errors.NotHostMemory:
            return True
        return False

    def available_bytes(self) -> int:
        """Returns what the device has left, for all processes."""
        import cupy  # noqa: PLC0415  # nothing else here needs it

        available: int = cupy.cuda.runtime.memGetInfo()[0]
        return available

    def wait_available(self, least: int) -> bool:
        """Waits until the device has so much left."""
        return wait_until(lambda: self.available_bytes() >= least, LIMIT)

    def wait_open(self) -> bool:
        """Waits until the namespace is open."""
        return self._namespace.wait_open(LIMIT) and self._client.wait_connected(LIMIT)

    def wait_open_or_told(self) -> bool:
        """Waits until the namespace is open, or says that an earlier store's views are kept."""

        def settled() -> bool:
            failure = self._namespace.failure
            return failure is None or "earlier store" in str(failure)

        return wait_until(settled, LIMIT)

    def failure(self) -> tuple[str, str]:
        """Waits until the device cannot be had; returns the error's class, and a request's."""
        wait_until(lambda: isinstance(self._namespace.failure, errors.DeviceUnavailable), LIMIT)
        missed = self._namespace.match([1, 2, 3]).failure
        return type(self._namespace.failure).__name__, type(missed).__name__

    def second_client(self, runtime_dir: str) -> int:
        """Opens the same namespace by another client of this process; returns the open handles."""
        with Client(runtime_dir, ClientConfig(call_timeout=LIMIT)) as other:
            namespace = other.namespace(IDENTITY, LAYOUT)
            assert namespace.wait_open(LIMIT), namespace.failure
            return self.opened()

    def fork_sleeper(self) -> int:
        """Forks a child that sleeps until it is killed; returns its process id."""
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        return pid

    def fork(self) -> tuple[int, bool]:
        """Fork; return the child's exit status, zero where its calls raise, and our own reading."""
        pid = os.fork()
        if pid == 0:
            os._exit(_raising(partial(self._namespace.match, [1]), partial(self.release)))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), self.reads_right()

    def _write_reserved(self, tokens: list[int]) -> None:
        for number, page in enumerate(self.reserved(), self._acquired.match.page_count):
            write_page(self._namespace, tokens, number, page)

    def _numbers(self, page: PageRef) -> torch.Tensor:
        """View any page as one row of int16."""
        return self._namespace.page_tensor(page).view(torch.int16).view(-1)

    def _changes(self, page: PageRef) -> bool:
        first = int(self._numbers(page)[0])
        return wait_until(lambda: int(self._numbers(page)[0]) != first, LIMIT)

    def _wait_for_device(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _raising(*calls: partial[object]) -> int:
    """Returns zero where every call raises ForkedClient."""
    for call in calls:
        try:
            call()
        except errors.ForkedClient:
            continue
        return 1
    return 0
