"""A request as the connector's halves see it, without an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Asked:
    """The fields of vLLM's ``Request`` that are read."""

    request_id: str
    all_token_ids: Sequence[int]
    cache_salt: str | None = None
    lora_request: None = None
    mm_features: Sequence[Any] = ()
    prompt_embeds: None = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False
    block_hashes: Sequence[bytes] = ()

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """All of them."""
        return self.all_token_ids

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.all_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.all_token_ids)
