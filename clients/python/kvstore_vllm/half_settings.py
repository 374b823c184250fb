"""How one engine uses the store."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HalfSettings:
    """What the scheduler half goes by: pages in tokens, ranks, and the operator's settings."""

    page_tokens: int
    rank_count: int = 1
    lookup_timeout: float = 0.25
    load_async: bool = True
    save_output: bool = True
