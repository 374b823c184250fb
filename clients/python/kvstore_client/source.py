"""A page to copy from."""

from types import TracebackType
from typing import Self

from kvstore_client.hold import Hold, end_holds
from kvstore_client.page_ref import PageRef


class Source:
    """A page of another sequence, whose first ``token_count`` tokens are this one's.

    Copy it into a page of your own (``Namespace.copy_page``), which may then be
    written from that token on, and :meth:`release` it as soon as the copy
    completed. It MUST NOT be written. As a context manager it is released at the
    end, after waiting for the device. One thread at a time uses it.
    """

    def __init__(self, hold: Hold, page: PageRef, token_count: int) -> None:
        self.hold = hold
        self.page = page
        self.token_count = token_count

    @property
    def pin_id(self) -> int | None:
        """The page's own pin, or None once it was released."""
        return self.hold.pin_ids[0] if self.hold.open else None

    def release(self) -> None:
        """Wait for the device, then have the page released; nothing the second time.

        Raises what ``ClientConfig.wait_for_device`` raises, and then holds the
        page for as long as the process lives.
        """
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
