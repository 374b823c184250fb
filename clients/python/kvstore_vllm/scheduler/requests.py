"""What the scheduler half knows of one request: its lookup, its loads and its saves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvstore_client import Acquired, Match
from kvstore_vllm.identity.request_key import RequestKey


class EngineRequest(Protocol):
    """What is read of vLLM's ``Request`` while it runs."""

    @property
    def request_id(self) -> str:
        """Its name."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of its prompt."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are known: the prompt, and what was sampled and accepted."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV the steps scheduled so far compute, or have."""

    @property
    def num_in_flight_tokens(self) -> int:
        """How many of those are of steps whose output is not there yet."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The known tokens."""


@dataclass(eq=False, slots=True)
class Lookup:
    """A question to the store, its answer, and what vLLM had of the request itself."""

    # Not while the store or ranks are still on their way to each other.
    asked_at: float | None = None
    match: Match | None = None
    answered: bool = False
    given_up: bool = False
    page_count: int = 0
    computed_tokens: int = 0

    def drop(self) -> None:
        """Gives the match back, now or when it comes."""
        self.given_up = self.answered = True
        self.page_count = 0
        match, self.match = self.match, None
        if match is not None:
            match.release()


@dataclass(eq=False, slots=True)
class Save:
    """Slots of pages ``inserted_end`` to ``end_page`` of a request, on their way.

    Pages up to ``planned_end`` are planned to be copied, those up to ``copied_end`` were, by
    all ranks, and those up to ``inserted_end`` are in the store.
    """

    acquired: Acquired | None = None
    end_page: int = 0
    planned_end: int = 0
    copied_end: int = 0
    inserted_end: int = 0
    open_jobs: int = 0
    inserting: bool = False
    # No more is planned; what was copied is inserted still, unless dropped too.
    stopped: bool = False
    dropped: bool = False


@dataclass(eq=False, slots=True)
class Tracked:
    """A request, from its arrival until nothing of it is under way any more."""

    request: EngineRequest
    key: RequestKey
    may_load: bool = True
    may_save: bool = True
    lookup: Lookup | None = None
    save: Save | None = None
    prompt_asked: bool = False
    # Pages from the beginning that the store is known to have had.
    stored_pages: int = 0
    # Of one that ended: its blocks, which vLLM keeps, and how many pages are to be stored.
    held: Sequence[int] = ()
    wanted_pages: int = 0
    last_asked: bool = False
    open_loads: int = 0

    def held_blocks(self) -> Sequence[int]:
        """Returns the blocks that vLLM keeps for it."""
        return self.held
