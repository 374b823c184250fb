"""A page to copy from."""

from kvstore_client.held import Held
from kvstore_client.hold import Hold
from kvstore_client.page_ref import PageRef


class Source(Held):
    """A page of another sequence, whose first ``token_count`` tokens are this one's.

    Copy it into a page of your own (``Namespace.copy_page``), which may then be
    written from that token on, and :meth:`release` it as soon as the copy
    completed. It MUST NOT be written.
    """

    def __init__(self, hold: Hold, page: PageRef, token_count: int) -> None:
        self.hold = hold
        self.page = page
        self.token_count = token_count

    @property
    def pin_id(self) -> int | None:
        """The page's own pin, or None once it was released."""
        return self.hold.pin_ids[0] if self.hold.open else None

    @property
    def holds(self) -> list[Hold]:
        """The page's pin."""
        return [self.hold]
