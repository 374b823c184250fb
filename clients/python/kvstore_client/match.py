"""The cached prefix of a sequence, pinned."""

from kvstore_client.errors import StoreError
from kvstore_client.held import Held
from kvstore_client.hold import Hold
from kvstore_client.in_flight import InFlight
from kvstore_client.page_ref import Pages
from kvstore_client.source import Source


class Match(Held):
    """A matched prefix, whose pages stay as they are until it is released.

    ``pages`` are used in place, for ``token_count`` tokens. ``source``, if there
    is one, has the tokens that follow them within a page: a page to copy from.
    ``next_token`` is there where the whole sequence was found, and is the argmax
    of what follows it: with the source copied nothing is left to run.

    Use it as a context manager, or call :meth:`release`; both wait for the
    device first and release the source too. Its pages MUST NOT be written. A miss
    has no pages and no source, and ``failure`` where it came of a failure of the
    store. ``in_flight`` is there where somebody is computing more of the sequence. One
    thread at a time uses it.
    """

    def __init__(
        self,
        hold: Hold | None = None,
        pages: Pages | None = None,
        token_count: int = 0,
        failure: StoreError | None = None,
        *,
        source: Source | None = None,
        next_token: int | None = None,
        in_flight: InFlight | None = None,
    ) -> None:
        self.pages = Pages() if pages is None else pages
        self.token_count = token_count
        self.failure = failure
        self.source = source
        self.next_token = next_token
        self.in_flight = in_flight
        self.hold = hold

    @property
    def page_count(self) -> int:
        """Number of matched pages."""
        return len(self.pages)

    @property
    def holds(self) -> list[Hold]:
        """What is held: the path's pin and the source's."""
        source = None if self.source is None else self.source.hold
        return [hold for hold in (self.hold, source) if hold is not None]

    @property
    def pin_id(self) -> int | None:
        """The pin, or None: a miss holds nothing, and neither does what was released."""
        return self.hold.pin_ids[0] if self.hold is not None and self.hold.open else None
