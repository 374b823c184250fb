"""The device is asked after each error, until it is found to have failed for good."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from structlog.testing import capture_logs

from kvstore.storage.cuda.device_watch import DeviceWatch
from kvstore.storage.errors import CudaFailed

ERROR = CudaFailed("memcpy: cudaErrorIllegalAddress")


class Rig:
    """A watch, the answers of its device, and the number of reports."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0
        self.told = 0
        self.watch = DeviceWatch(self.ask)
        self.watch.on_lost(self.tell)

    def ask(self) -> bool:
        """Answers as the device."""
        self.asked += 1
        return self.answers

    def tell(self) -> None:
        """Count."""
        assert self.watch.lost
        self.told += 1


def test_an_error_that_passes_is_none_of_the_device() -> None:
    """The watch asks the device after each of them."""
    rig = Rig()
    assert [rig.watch.is_lost(ERROR) for _ in range(2)] == [False, False]
    assert (rig.asked, rig.told, rig.watch.lost) == (2, 0, False)


def test_a_device_is_lost_once() -> None:
    """However many threads find it at once: one line, one report, no question after it."""
    rig = Rig()
    rig.answers = False
    with capture_logs() as logs, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rig.watch.is_lost, [ERROR] * 8))
    assert (rig.asked, rig.told) == (1, 1)
    assert [(each["event"], each["log_level"], each["why"]) for each in logs] == [
        ("device_lost", "critical", str(ERROR))
    ]


def test_nobody_goes_on_before_all_are_told() -> None:
    """Else a match that found the device lost would be answered by a store that takes new work."""
    rig, telling, returned = Rig(), Event(), Event()
    rig.answers = False
    overtaken: list[bool] = []

    def tell() -> None:
        telling.set()
        # It does not return in time if it waits for this.
        overtaken.append(returned.wait(0.2))

    rig.watch.on_lost(tell)
    with capture_logs(), ThreadPoolExecutor(1) as pool:
        first = pool.submit(rig.watch.is_lost, ERROR)
        assert telling.wait(30)
        assert rig.watch.is_lost(ERROR)
        returned.set()
        assert first.result()
    assert overtaken == [False]


def test_whoever_asks_to_be_told_too_late_is_told_at_once() -> None:
    """A server makes its health after the threads that copy."""
    rig = Rig()
    rig.answers = False
    with capture_logs():
        rig.watch.is_lost(ERROR)
    late: list[bool] = []
    rig.watch.on_lost(lambda: late.append(rig.watch.lost))
    assert (late, rig.told) == ([True], 1)
