"""The state of one request in the scheduler half: its lookup, its loads and its saves."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvstore_client import Acquired, Match, ReuseHint
from kvstore_vllm.identity.request_key import RequestKey


class EngineRequest(Protocol):
    """The fields of vLLM's ``Request`` that the scheduler half reads while it runs."""

    @property
    def request_id(self) -> str:
        """The request's id."""

    @property
    def num_prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""

    @property
    def num_tokens(self) -> int:
        """The number of known tokens: the prompt's, and the accepted samples."""

    @property
    def num_computed_tokens(self) -> int:
        """The number of tokens whose KV is computed by the steps scheduled so far."""

    @property
    def num_in_flight_tokens(self) -> int:
        """The number of computed tokens in steps whose output has not arrived yet."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The known tokens."""


@dataclass(eq=False, slots=True)
class RequestLookup:
    """A lookup in the store, its answer, and the number of tokens that vLLM had computed."""

    # None while the store or ranks are still about to reach each other.
    asked_at: float | None = None
    match: Match | None = None
    answered: bool = False
    answered_at: float = 0.0
    given_up: bool = False
    page_count: int = 0
    computed_tokens: int = 0

    def drop(self) -> None:
        """Releases the match, now or when it arrives."""
        self.given_up = self.answered = True
        self.page_count = 0
        match, self.match = self.match, None
        if match is not None:
            match.release()


@dataclass(eq=False, slots=True)
class Save:
    """The save of a request's pages up to ``end_page``, into reserved slots.

    Pages up to ``inserted_end`` are in the store. Pages up to ``copied_end`` are copied by all
    ranks, and copies are planned of pages up to ``planned_end``.
    """

    acquired: Acquired | None = None
    end_page: int = 0
    planned_end: int = 0
    copied_end: int = 0
    inserted_end: int = 0
    open_jobs: int = 0
    inserting: bool = False
    # Nothing more is planned. Copied pages are still inserted, unless the save is dropped too.
    stopped: bool = False
    dropped: bool = False


@dataclass(eq=False, slots=True)
class Tracked:
    """A request, from its arrival until its last transfer and call ended."""

    request: EngineRequest
    key: RequestKey
    hint: ReuseHint | None = None
    may_load: bool = True
    may_save: bool = True
    lookup: RequestLookup | None = None
    # Scheduling has waited for an answer about this request, and does not wait again.
    waited: bool = False
    save: Save | None = None
    prompt_asked: bool = False
    # The number of pages from the beginning that the store is known to have had.
    stored_pages: int = 0
    # For an ended request: its blocks, which vLLM keeps, and the number of pages to store.
    held: Sequence[int] = ()
    wanted_pages: int = 0
    last_asked: bool = False
    open_loads: int = 0
    # The pages of the load planned last, by the store's tier that had them.
    load_tiers: Counter[int] = field(default_factory=Counter)

    def held_blocks(self) -> Sequence[int]:
        """Returns the blocks that vLLM keeps for the ended request."""
        return self.held
