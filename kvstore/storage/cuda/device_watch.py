"""A watch for permanent errors of the device with the store's pages."""

from collections.abc import Callable
from threading import Lock

import structlog

from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ADVICE = "restart this server: workers compute without it until then"


class DeviceWatch:
    """Asks a device whether it still works, after it refused a call. Thread-safe.

    CUDA repeats some errors, such as an illegal address or an ECC error, at every later call of the
    process. The process can then read and copy nothing on the device until it ends.
    """

    def __init__(self, answers: Callable[[], bool]) -> None:
        """``answers`` returns whether the device works. It may wait for the device."""
        self._answers = answers
        self._asking = Lock()
        self._told: list[Callable[[], None]] = []
        self.lost = False

    def on_lost(self, tell: Callable[[], None]) -> None:
        """Registers ``tell``, to be called once the device has failed for good; at once if it has.

        ``tell`` must not wait, nor use this.
        """
        with self._asking:
            if not self.lost:
                self._told.append(tell)
                return
        tell()

    def is_lost(self, error: CudaFailed) -> bool:
        """Returns whether the device has failed for good; asks it after each ``error`` until then.

        The first time, logs one line and calls each function of ``on_lost``. Every caller gets
        True only after that.
        """
        with self._asking:
            if self.lost:
                return True
            if self._answers():
                return False
            self.lost = True
            log.critical("device_lost", why=str(error), advice=ADVICE)
            for tell in self._told:
                tell()
        return True
