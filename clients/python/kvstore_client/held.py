"""What is given back at the end of a block, or earlier."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from kvstore_client.hold import Hold, end_holds, require_current


class Held(ABC):
    """Pages that stay as they are until :meth:`release`, or the end of a ``with`` block.

    One thread at a time uses it.
    """

    @property
    @abstractmethod
    def holds(self) -> list[Hold]:
        """What is held; perhaps nothing."""

    def release(self) -> None:
        """Waits for the device, once, then have all of it given back; nothing the second time.

        Raises what ``ClientConfig.wait_for_device`` raises, and then holds the
        pages for as long as the process lives.
        """
        end_holds(*self.holds)

    @property
    def current(self) -> bool:
        """Whether all pages that are held still are what they were when they came.

        Anything else is a bug of the store, which a pin keeps from recycling them.
        Looks at memory alone, some nanoseconds a page, and waits for no device.
        """
        return not any(hold.recycled() for hold in self.holds)

    def require_current(self, *, wait: bool = True) -> None:
        """Waits for the device, once, then raises ``PageRecycled`` unless :attr:`current`.

        Call it after you copied pages or read them in place. If it returns, your results are valid;
        if it raises, drop them. Also raises what ``ClientConfig.wait_for_device`` raises.

        An engine that waits for its device once for several sequences passes ``wait=False`` after
        that wait.
        """
        require_current(*self.holds, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
