"""A request of the naive engine, and a step that it ran."""

from dataclasses import dataclass, field

from kvstore_vllm.step_plan import WorkerReport
from naive.pages import Prefix


@dataclass(eq=False)
class NaiveRequest:
    """The part of vLLM's ``Request`` that the scheduler's half reads."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    offered: int | None = None
    no_more_loads: bool = False

    @property
    def num_tokens(self) -> int:
        """The known tokens."""
        return len(self.all_token_ids)


@dataclass
class Step:
    """A step that ran, whose output is not taken in yet."""

    tokens: dict[str, int]
    report: WorkerReport
    invalid: set[int]
    let_go: set[str]
    received: set[str]


def next_token(prefix: Prefix) -> int:
    """Returns what follows, one of three, so that requests go on alike."""
    return (sum(prefix) + len(prefix)) % 3
