"""Whether the device that pages are on failed for good, which ends what this process can serve."""

from collections.abc import Callable
from threading import Lock

import structlog

from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ADVICE = "restart this server: the workers compute without it until then"


class DeviceWatch:
    """Asks a device whether it still works, after it refused a call. Thread-safe.

    CUDA repeats some errors, such as an illegal address or an ECC error, at every later call of
    the process: nothing of the device can be read or copied then until the process ends.
    """

    def __init__(self, answers: Callable[[], bool]) -> None:
        """``answers`` tells whether the device works. It may wait for the device."""
        self._answers = answers
        self._asking = Lock()
        self._told: list[Callable[[], None]] = []
        self.lost = False

    def on_lost(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once the device is found to have failed for good, at once if it has.

        ``tell`` must not wait, nor use this.
        """
        with self._asking:
            if not self.lost:
                self._told.append(tell)
                return
        tell()

    def is_lost(self, error: CudaFailed) -> bool:
        """Return whether ``error`` is one that stays; asks the device, at each error until then.

        The first time that it is, logs one line and calls what ``on_lost`` was given. Nobody is
        answered True before that is done.
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
