"""A client's lanes to a scripted socket, by a clock of the test's."""

from functools import partial
from threading import Thread

from kvstore_client import errors
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.lane_pool import LanePool
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_lanes import METHOD, ScriptedLanes

LIMIT = 30.0


class LaneRig:
    """Lanes to a scripted socket, by a clock of the test's."""

    def __init__(self, runtime_dir: RuntimeDir) -> None:
        self.now = 0.0
        self.path = runtime_dir.attach_socket
        self.lane_class = Lane
        self.store = ScriptedLanes(self.path)
        self.lanes = LanePool(self.open, clock=lambda: self.now)
        # What came of each posted call that something came of.
        self.told: list[tuple[int, bool]] = []

    def open(self, timeout: float) -> Lane:
        """Opens a lane, however long it takes."""
        del timeout
        lane = self.lane_class(self.path)
        try:
            lane.open("test", b"lease", b"secret", Deadline(LIMIT))
        except errors.StoreError:
            lane.close()
            raise
        return lane

    def call(self, *pieces: bytes, timeout: float = LIMIT) -> bytes | None:
        """Makes a call."""
        return self.lanes.call(METHOD, pieces or (b"request",), timeout)

    def open_one(self) -> None:
        """Opens one lane and leaves it idle."""
        self.store.answer(b"")
        assert self.call() == b""
        assert self.store.came.acquire(timeout=LIMIT)

    def open_two(self) -> None:
        """Opens exactly two lanes and leaves them idle."""
        threads = [Thread(target=self.call, daemon=True) for _ in range(2)]
        for each in threads:
            each.start()
        assert all(self.store.came.acquire(timeout=LIMIT) for _ in threads)
        self.store.answer(b"", b"")
        for each in threads:
            each.join(LIMIT)

    def call_in_order(self, timeout: float = LIMIT) -> bytes | None:
        """Makes a call that comes after all that was posted."""
        return self.lanes.call(METHOD, [b"in order"], timeout, in_order=True)

    def post(self, number: int = 0, *, size: int = 1, timeout: float = LIMIT) -> bool:
        """Post a call by this number; return whether a lane took it."""
        told = partial(self._told, number)
        return self.lanes.post(METHOD, [bytes([number]) * size], timeout, told)

    def has_told(self, count: int) -> bool:
        """Reads what is there; tell whether something came of so many calls."""
        self.lanes.collect()
        return len(self.told) == count

    def _told(self, number: int, succeeded: bool) -> None:  # noqa: FBT001  # as it is told
        self.told.append((number, succeeded))
