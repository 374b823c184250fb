"""What is given back at the end of a block, or earlier."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from kvstore_client.hold import Hold, end_holds


class Held(ABC):
    """Pages that stay as they are until :meth:`release`, or the end of a ``with`` block.

    One thread at a time uses it.
    """

    @property
    @abstractmethod
    def holds(self) -> list[Hold]:
        """What is held; perhaps nothing."""

    def release(self) -> None:
        """Wait for the device, once, then have all of it given back; nothing the second time.

        Raises what ``ClientConfig.wait_for_device`` raises, and then holds the
        pages for as long as the process lives.
        """
        end_holds(*self.holds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
