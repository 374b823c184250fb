"""The cached prefix of a sequence, pinned."""

from types import TracebackType
from typing import Self

from kvstore_client.errors import StoreError
from kvstore_client.hold import Hold, end_holds
from kvstore_client.page_ref import PageRef


class Match:
    """A matched prefix, whose pages stay as they are until it is released.

    Use it as a context manager, or call :meth:`release`; both wait for the
    device first. Its pages MUST NOT be written. A miss has no pages, and
    ``failure`` where it came of a failure of the store. One thread at a time
    uses it.
    """

    def __init__(
        self,
        hold: Hold | None = None,
        pages: list[PageRef] | None = None,
        token_count: int = 0,
        failure: StoreError | None = None,
    ) -> None:
        self.pages = pages or []
        self.token_count = token_count
        self.failure = failure
        self.hold = hold

    @property
    def page_count(self) -> int:
        """Number of matched pages."""
        return len(self.pages)

    @property
    def pin_id(self) -> int | None:
        """The pin, or None: a miss holds nothing, and neither does what was released."""
        return self.hold.pin_ids[0] if self.hold is not None and self.hold.open else None

    def release(self) -> None:
        """Wait for the device, then have the pin released; nothing the second time.

        Raises what ``ClientConfig.wait_for_device`` raises, and then holds the
        pages for as long as the process lives.
        """
        if self.hold is not None:
            end_holds(self.hold)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
