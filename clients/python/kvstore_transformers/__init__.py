"""``model.generate`` of transformers, starting from what a kvstore has of the prompt."""

from kvstore_transformers.errors import UnsupportedModelError
from kvstore_transformers.prefix_cache import PrefixCache
from kvstore_transformers.prefix_store import PrefixStore
from kvstore_transformers.prompt import Prompt
from kvstore_transformers.prompt_counts import PromptCounts

__all__ = ["PrefixCache", "PrefixStore", "Prompt", "PromptCounts", "UnsupportedModelError"]
