"""A causal language model of transformers that computes on pages."""

from pathlib import Path
from typing import Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from inference_worker.attention import (
    ATTENTION_KEYWORD,
    ATTENTION_NAME,
    register_attention,
    running,
)
from inference_worker.attention_choice import AttentionKind, AttentionOfStep, choose_attention
from inference_worker.byte_tokenizer import ByteTokenizer
from inference_worker.device import find_device, weights_dtype
from inference_worker.device_name import CPU, DtypeName
from inference_worker.digest import folder_digest, module_digest
from inference_worker.errors import UnsupportedModelError
from inference_worker.model_source import model_folder
from inference_worker.page_layout import PageLayout
from inference_worker.page_pool import PagePool
from inference_worker.probe import ModelShape, probe_model
from inference_worker.self_check import (
    PAGE_TOKENS,
    check_ids,
    check_length,
    check_paged,
    stock_rows,
)
from inference_worker.step import Step
from inference_worker.tokenizer import Tokenizer, load_tokenizer
from inference_worker.upload import upload

# Where a configuration names no limit.
DEFAULT_MAX_TOKENS: Final = 4096


class PagedModel:
    """A model with its tokenizer, ready to run steps over a page pool.

    The model is in inference mode and has no cache of its own: all that a step leaves behind is
    in the pages.
    Not thread-safe: one engine thread uses it.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: Tokenizer,
        shape: ModelShape,
        digest: str,
        attention: AttentionKind | None = None,
    ) -> None:
        """Take a module whose attention is set to the paged one, or will be before it computes.

        Raises ``ValueError`` for an attention that cannot be had.
        """
        self._module = module
        self._tokenizer = tokenizer
        self._shape = shape
        self._digest = digest
        self._attention: AttentionOfStep = choose_attention(self.layout(1), self.device, attention)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def shape(self) -> ModelShape:
        """Layers, heads, head size and windows."""
        return self._shape

    @property
    def digest(self) -> str:
        """What the model is, as 64 hexadecimal digits: weights and configuration, not a name."""
        return self._digest

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device: torch.device = self._module.device
        return device

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return int(self._module.config.get_text_config(decoder=True).vocab_size)

    @property
    def max_tokens(self) -> int:
        """The longest sequence that the model was made for."""
        config = self._module.config.get_text_config(decoder=True)
        return int(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_TOKENS)

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids after which the model says nothing more, perhaps none."""
        named = self._module.generation_config.eos_token_id
        return frozenset([named] if isinstance(named, int) else named or ())

    def layout(self, page_tokens: int) -> PageLayout:
        """Say what this model's pages of ``page_tokens`` tokens look like."""
        return PageLayout(
            layer_count=self._shape.layer_count,
            kv_head_count=self._shape.kv_head_count,
            head_dim=self._shape.head_dim,
            dtype=str(self._module.dtype).removeprefix("torch."),
            page_tokens=page_tokens,
        )

    def forward(self, step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        """Compute a step's tokens and write their keys and values into its pages.

        ``input_ids`` are int64 ``[step.token_count]``, the parts' tokens one after the other.
        Gives float32 logits ``[rows, vocabulary]``: the last row of each part that wants them.
        On a GPU it returns before the device is done; reading the logits waits.
        Raises ``ValueError`` for a wrong number of ids.
        """
        if input_ids.shape != (step.token_count,):
            msg = f"{tuple(input_ids.shape)} ids for a step of {step.token_count} tokens"
            raise ValueError(msg)
        with torch.inference_mode(), running(self._attention(step)) as attention:
            answer = self._module(
                input_ids=upload(input_ids, self.device).unsqueeze(0),
                position_ids=step.position_ids(),
                use_cache=False,
                logits_to_keep=step.logit_rows(),
                **{ATTENTION_KEYWORD: attention},
            )
        logits: torch.Tensor = answer.logits
        return logits[0].float()


def load_model(
    source: str | Path,
    *,
    device: str = CPU,
    dtype: DtypeName | None = None,
    attention: AttentionKind | None = None,
    tokenizer: Tokenizer | None = None,
) -> PagedModel:
    """Load what ``model_folder`` finds for ``source``: float32 on a CPU, bfloat16 on a GPU.

    ``dtype`` and ``attention``, if told, are others than ``weights_dtype`` and
    ``choose_attention`` find; a ``tokenizer``, if given, stands in for the folder's, which for a
    large vocabulary takes half a gigabyte. Raises ``UnsupportedModelError`` with a reason if its
    keys and values cannot live in pages or if it fails the self-check, ``FileNotFoundError`` where
    there is no model, and ``ValueError`` for a device that is not there or an attention that cannot
    be had.
    """
    where = find_device(device)
    folder = model_folder(source)
    digest = folder_digest(folder)
    config = AutoConfig.from_pretrained(folder)
    if type(config) not in AutoModelForCausalLM._model_mapping:  # noqa: SLF001 - no public reader
        raise UnsupportedModelError(str(config.model_type), "it is no causal language model")
    # Weights are mapped, in less time than a bar takes to read.
    disable_progress_bar()
    kept = weights_dtype(where, dtype)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=kept).to(where)
    return _paged(module, tokenizer or load_tokenizer(folder), digest, attention)


def page_model(
    module: PreTrainedModel,
    tokenizer: Tokenizer | None = None,
    *,
    digest: str | None = None,
    attention: AttentionKind | None = None,
) -> PagedModel:
    """Serve a model built in this process; without a tokenizer its tokens are bytes.

    Without a ``digest``, 64 hexadecimal digits that no other weights have, all of them are read
    for one. Changes the module's attention and puts it in evaluation mode.
    Raises ``UnsupportedModelError`` and ``ValueError`` as ``load_model`` does.
    """
    digest = digest or module_digest(module)
    return _paged(module, tokenizer or ByteTokenizer(), digest, attention)


def _paged(
    module: PreTrainedModel, tokenizer: Tokenizer, digest: str, attention: AttentionKind | None
) -> PagedModel:
    module.eval()
    shape = probe_model(module)
    model = PagedModel(module, tokenizer, shape, digest, attention)
    ids = check_ids(check_length(shape), model.vocabulary, model.device)
    # An unaligned chunk, a chunk that reads it, and two steps of decoding.
    rows = [ids.shape[0] // 2 + 5, *range(ids.shape[0] - 3, ids.shape[0])]
    expected = stock_rows(module, ids, rows)
    register_attention()
    module.set_attn_implementation(ATTENTION_NAME)
    pool = PagePool(model.layout(PAGE_TOKENS), model.device)
    check_paged(module, model.forward, pool, ids, expected, rows)
    return model
