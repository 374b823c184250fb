"""One prompt, for one ``model.generate``."""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import torch
from transformers import PreTrainedModel

from kvstore_client import Namespace
from kvstore_client.errors import StoreError
from kvstore_transformers.forward_watch import ForwardWatch
from kvstore_transformers.model_identity import require_weights
from kvstore_transformers.model_probe import ModelShape
from kvstore_transformers.prefix_cache import PrefixCache
from kvstore_transformers.prompt_counts import CountOfPrompts
from kvstore_transformers.stored_prefix import StoredPrefix

# The number of output tokens for which a new cache has memory.
OUTPUT_ROOM: Final = 128


class Prompt(Mapping[str, Any]):
    """Arguments for ``model.generate``: ``input_ids``, ``attention_mask``, ``past_key_values``.

    Use it as a context manager. Inside the block it has the arguments. Their cache has the
    prompt's cached prefix, and ``generate`` computes the rest. At the end the computed whole
    pages of prompt and output are saved, and all holds at the store are released. After an
    exception nothing is saved. The cache stays usable afterwards, as any cache.

    One thread uses it, once. A thread that generates for it must have ended before the block
    ends. Beginning and end raise ``RuntimeError`` if the model's weights have changed.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        shape: ModelShape,
        namespace: Namespace,
        input_ids: torch.Tensor,
        counts: CountOfPrompts,
        *,
        stamp: int,
    ) -> None:
        """``input_ids`` are int64 ``[1, n]``; ``stamp`` is of the weights that computed pages."""
        self._module = module
        self._shape = shape
        self._input_ids = input_ids
        self._counts = counts
        self._stamp = stamp
        self._stored = StoredPrefix(namespace)
        self._arguments: dict[str, Any] | None = None
        self._watch: ForwardWatch | None = None
        self.cached_token_count = 0
        """The number of prompt tokens that were copied from the store and not computed."""
        self.saved_token_count = 0
        """The number of tokens of prompt and output that the end saved, in whole pages."""

    @property
    def failure(self) -> StoreError | None:
        """The store's last error, such as ``PoolExhausted`` on saving, or None."""
        return self._stored.failure

    @property
    def cache(self) -> PrefixCache:
        """The cache; raises ``RuntimeError`` before the block begins."""
        cache: PrefixCache = self["past_key_values"]
        return cache

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as arguments are
        return self._begun()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._begun())

    def __len__(self) -> int:
        return len(self._begun())

    def __enter__(self) -> Self:
        if self._arguments is not None:
            raise RuntimeError("a prompt is used once: ask the store for another")
        require_weights(self._module, self._stamp)
        ids = self._input_ids[0].tolist()
        module = self._module
        cache = PrefixCache(self._shape, module.dtype, module.device, len(ids) + OUTPUT_ROOM)
        self._arguments = {
            "input_ids": self._input_ids,
            "attention_mask": torch.ones_like(self._input_ids),
            "past_key_values": cache,
        }
        self._stored.load(ids, cache)
        self.cached_token_count = cache.token_count
        self._watch = ForwardWatch(module, cache, self._input_ids[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._watch is not None  # it was entered
        self._watch.stop()
        try:
            # Read before the check, so that later announcements of other threads are not saved.
            ids = self.cache.token_ids()
            if error is None and self._watch.complete():
                require_weights(self._module, self._stamp)
                self.saved_token_count = self._stored.save(ids, self.cache)
        finally:
            self._stored.release()
            self._counts.add(
                self._input_ids.shape[1], self.cached_token_count, self.saved_token_count
            )

    def _begun(self) -> dict[str, Any]:
        if self._arguments is None:
            raise RuntimeError("a prompt begins with its context: with store.prompt(...) as prompt")
        return self._arguments
