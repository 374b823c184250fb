"""A model's use of a store."""

import os
from typing import Any, Final, Self

import torch
from transformers import PreTrainedModel

from kvstore_client import Client, ClientConfig, NamespaceIdentity, PagedContent, PageLayout
from kvstore_client.errors import StoreError
from kvstore_transformers.cache_check import check_cache
from kvstore_transformers.errors import UnsupportedModelError
from kvstore_transformers.model_identity import model_digest, require_weights, weights_stamp
from kvstore_transformers.model_probe import probe_model
from kvstore_transformers.prompt import Prompt
from kvstore_transformers.prompt_counts import CountOfPrompts, PromptCounts

# The page size of kvstore-worker, because pages of other sizes are not shared.
PAGE_TOKENS: Final = 16


class PrefixStore:
    """Prompts for ``model.generate`` that start from their cached prefix.

    ::

        store = PrefixStore(model)
        with store.prompt(**tokenizer(text, return_tensors="pt")) as prompt:
            output = model.generate(**prompt, max_new_tokens=100)

    If the store is absent or fails in any way, ``generate`` computes the whole prompt, with the
    same output. The client attaches in the background, and again after each end. A prompt uses
    the store that is attached when it begins. Create one on one thread at a time; any thread may
    call :meth:`prompt`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        runtime_dir: str | os.PathLike[str] | None = None,
        *,
        config: ClientConfig | None = None,
        digest: str | None = None,
        page_tokens: int = PAGE_TOKENS,
        display_name: str = "transformers",
        open_timeout: float = 2.0,
    ) -> None:
        """Probes the model, reads its weights for their digest, and attaches.

        - ``runtime_dir`` is the folder of the store's sockets, by default that of
          ``kvstore-server``.
        - ``digest`` is 64 hexadecimal digits that no other weights have. The weights are not
          read then.
        - ``open_timeout`` is the longest wait for a store, in seconds, so that a script's first
          prompt finds it.

        Raises ``UnsupportedModelError`` with the reason if pages cannot have the model's keys and
        values. Raises ``TypeError`` if ``model`` is no model of transformers, and ``ValueError``
        for an invalid digest.
        """
        _refuse(model)
        self._shape = probe_model(model)
        check_cache(model, self._shape)
        self._model = model
        self._counts = CountOfPrompts()
        self._client = Client(runtime_dir, config or ClientConfig(display_name=display_name))
        self._client.start()
        try:
            # Before the weights are read, so that a concurrent write is noticed.
            self._stamp = weights_stamp(model)
            identity = NamespaceIdentity(
                bytes.fromhex(digest or model_digest(model)), display_name=display_name
            )
        except BaseException:
            self.close()
            raise
        content = PagedContent(
            layer_count=self._shape.layer_count,
            kv_head_count=self._shape.kv_head_count,
            head_dim=self._shape.head_dim,
            dtype=str(model.dtype).removeprefix("torch."),
        )
        self._namespace = self._client.namespace(identity, PageLayout.paged(page_tokens, content))
        self._namespace.wait_open(open_timeout)

    @property
    def failure(self) -> StoreError | None:
        """The error because of which no store is used now, or None if one is used."""
        return self._namespace.failure

    @property
    def counts(self) -> PromptCounts:
        """The counts over all prompts that ended."""
        return self._counts.counts

    def prompt(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Prompt:
        """Returns a prompt, to be entered: ``with store.prompt(**inputs) as prompt``.

        ``input_ids`` are ``[1, n]``, as a tokenizer returns them. Raises ``ValueError`` for
        several prompts, a padded prompt or an empty one. Raises ``RuntimeError`` if the model's
        weights have changed since this store was made.
        """
        if input_ids.dim() != 2 or input_ids.shape[0] != 1:  # noqa: PLR2004
            raise ValueError(f"one prompt at a time, [1, tokens], not {list(input_ids.shape)}")
        if not input_ids.shape[1]:
            raise ValueError("the prompt has no tokens: is its tokenizer the model's?")
        if attention_mask is not None and not bool((attention_mask == 1).all()):
            raise ValueError("a prompt has no padding: its attention mask is all ones")
        require_weights(self._model, self._stamp)
        return Prompt(
            self._model,
            self._shape,
            self._namespace,
            input_ids,
            self._counts,
            stamp=self._stamp,
        )

    def close(self) -> None:
        """Releases everything and detaches. Later prompts work without a store. Can be repeated."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _refuse(model: Any) -> None:  # noqa: ANN401 - whatever was passed
    """Raises for models that the probe of two tokens cannot recognise as unsupported."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"a model of transformers is wanted, not a {type(model).__name__}")
    model_type = str(model.config.model_type)
    injected = any(type(each).__module__.startswith("peft.") for each in model.modules())
    if injected or getattr(model, "_hf_peft_config_loaded", False):
        reason = "an adapter can be turned on and off unseen: merge it into the weights first"
        raise UnsupportedModelError(model_type, reason)
    places = sorted({str(each.device) for each in model.parameters()})
    if len(places) != 1:
        raise UnsupportedModelError(model_type, f"its weights are on several devices: {places}")
