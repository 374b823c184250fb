"""A causal language model of transformers that computes on pages."""

from pathlib import Path
from typing import Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from inference_worker.attention.attention import (
    ATTENTION_KEYWORD,
    ATTENTION_NAME,
    StepAttention,
    register_attention,
    running,
)
from inference_worker.attention.deterministic import (
    FORWARD_ROWS,
    ExactAttention,
    RowByRow,
    exact_digest,
    filled,
    fix_workspace,
    forwards_of,
    refuse_experts,
)
from inference_worker.attention.selector import AttentionKind, AttentionOfStep, choose_attention
from inference_worker.attention.step import Step
from inference_worker.errors import UnsupportedModelError
from inference_worker.model.device import find_device, weights_dtype
from inference_worker.model.gemma import gemma_folder
from inference_worker.model.names import CPU, GEMMA, TINY, DtypeName
from inference_worker.model.self_check import (
    PAGE_TOKENS,
    check_exact,
    check_ids,
    check_length,
    check_paged,
    stock_rows,
)
from inference_worker.model.tiny import TINY_MODELS, tiny_folder
from inference_worker.model.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from inference_worker.pages.extents import upload
from inference_worker.pages.layout import PageLayout
from inference_worker.pages.pool import PagePool
from kvstore_transformers.errors import UnsupportedModelError as UnfitModelError
from kvstore_transformers.model_probe import ModelShape, probe_model
from kvstore_transformers.weights_digest import folder_digest, module_digest


def model_folder(source: str | Path) -> Path:
    """Returns the model folder of ``gemma``, ``tiny``, ``tiny-gemma3``, ``tiny-llama``, or a path.

    ``tiny`` is ``tiny-qwen3``. The named models are built in the cache on first use; Gemma takes
    about half a minute. Raises ``FileNotFoundError`` for a path that is not a folder.
    """
    name = str(source)
    if name == GEMMA:
        return gemma_folder()
    if name == TINY:
        return tiny_folder()
    kind, _, rest = name.partition("-")
    if kind == TINY and rest in TINY_MODELS:
        return tiny_folder(rest)
    folder = Path(source)
    if not folder.is_dir():
        names = [GEMMA, TINY, *(f"{TINY}-{rest}" for rest in TINY_MODELS)]
        raise FileNotFoundError(f"{name} is neither a folder nor one of {', '.join(names)}")
    return folder


# For a configuration without a limit.
DEFAULT_MAX_TOKENS: Final = 4096


class PagedModel:
    """A model with its tokenizer, ready to run steps over a page pool.

    The model is in inference mode and has no cache of its own: the pages hold all results of a
    step. Not thread-safe: one engine thread uses it.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: Tokenizer,
        shape: ModelShape,
        digest: str,
        attention: AttentionKind | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        """Takes a module whose attention is the paged one, or will be before it computes.

        A ``deterministic`` model computes in forwards of one size, and has another digest. Raises
        ``ValueError`` for an attention that cannot run.
        """
        self._deterministic = deterministic
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
        """The model's identity, 64 hexadecimal digits of weights and configuration, not of a name.

        A deterministic model's digest also covers everything else that changes bits.
        """
        return exact_digest(self._digest, self.device) if self._deterministic else self._digest

    @property
    def device(self) -> torch.device:
        """The device that the model computes on."""
        device: torch.device = self._module.device
        return device

    @property
    def vocabulary(self) -> int:
        """All token ids are below this."""
        return int(self._module.config.get_text_config(decoder=True).vocab_size)

    @property
    def max_tokens(self) -> int:
        """The longest sequence that the model supports, in tokens."""
        config = self._module.config.get_text_config(decoder=True)
        return int(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_TOKENS)

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end the model's output; may be empty."""
        named = self._module.generation_config.eos_token_id
        return frozenset([named] if isinstance(named, int) else named or ())

    def layout(self, page_tokens: int) -> PageLayout:
        """Returns the layout of this model's pages of ``page_tokens`` tokens."""
        return PageLayout(
            layer_count=self._shape.layer_count,
            kv_head_count=self._shape.kv_head_count,
            head_dim=self._shape.head_dim,
            dtype=str(self._module.dtype).removeprefix("torch."),
            page_tokens=page_tokens,
        )

    def forward(self, step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        """Computes a step's tokens and writes their keys and values into its pages.

        ``input_ids`` are int64 ``[step.token_count]``, the parts' tokens one after the other.
        Returns float32 logits ``[rows, vocabulary]``: the last row of each part that wants them. On
        a GPU it returns before the device is done; reading the logits waits. Raises ``ValueError``
        for a wrong number of ids.
        """
        if input_ids.shape != (step.token_count,):
            raise ValueError(
                f"{tuple(input_ids.shape)} ids for a step of {step.token_count} tokens"
            )
        if self._deterministic:
            ids = input_ids.split(FORWARD_ROWS)
            steps = zip(forwards_of(step), ids, strict=True)
            return torch.cat([self._compute_exactly(*each) for each in steps])
        attention = self._attention(step)
        return self._compute(input_ids, step.position_ids(), step.logit_rows(), attention)

    def _compute_exactly(self, step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        """Computes a step of at most ``FORWARD_ROWS`` tokens, padded to that number."""
        positions = filled(step.position_ids())
        return self._compute(filled(input_ids), positions, step.logit_rows(), ExactAttention(step))

    def _compute(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: StepAttention,
    ) -> torch.Tensor:
        """Runs the module; returns float32 logits of ``rows``."""
        with torch.inference_mode(), running(attention):
            answer = self._module(
                input_ids=upload(input_ids, self.device).unsqueeze(0),
                position_ids=positions,
                use_cache=False,
                logits_to_keep=rows,
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
    deterministic: bool = False,
) -> PagedModel:
    """Loads the model of ``model_folder``: float32 on a CPU, bfloat16 on a GPU.

    ``dtype`` and ``attention`` replace the defaults of ``weights_dtype`` and ``choose_attention``.
    A ``tokenizer`` replaces the folder's, which takes half a gigabyte for a large vocabulary. With
    ``deterministic`` no bit of a sequence depends on what else is computed. Raises
    ``UnsupportedModelError`` with a reason if the model's keys and values do not fit into pages or
    if it fails the self-check, ``FileNotFoundError`` if there is no model, and ``ValueError`` for a
    device that is missing or an attention that cannot run.
    """
    where = find_device(device)
    folder = model_folder(source)
    digest = folder_digest(folder)
    config = AutoConfig.from_pretrained(folder)
    if type(config) not in AutoModelForCausalLM._model_mapping:  # noqa: SLF001 - no public reader
        raise UnsupportedModelError(str(config.model_type), "it is not a causal language model")
    if deterministic:
        fix_workspace(where)
    # Mapping the weights takes less time than reading a progress bar.
    disable_progress_bar()
    kept = weights_dtype(where, dtype)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=kept).to(where)
    words = tokenizer or load_tokenizer(folder)
    return _paged(module, words, digest, attention, deterministic=deterministic)


def page_model(
    module: PreTrainedModel,
    tokenizer: Tokenizer | None = None,
    *,
    digest: str | None = None,
    attention: AttentionKind | None = None,
    deterministic: bool = False,
) -> PagedModel:
    """Wraps a model built in this process; without a tokenizer its tokens are bytes.

    ``digest`` is 64 hexadecimal digits that no other weights have. Without it, all weights are read
    to compute one. Changes the module's attention and puts it in evaluation mode. Raises
    ``UnsupportedModelError`` and ``ValueError`` as ``load_model`` does.
    """
    digest = digest or module_digest(module)
    tokenizer = tokenizer or ByteTokenizer()
    return _paged(module, tokenizer, digest, attention, deterministic=deterministic)


def _paged(
    module: PreTrainedModel,
    tokenizer: Tokenizer,
    digest: str,
    attention: AttentionKind | None,
    *,
    deterministic: bool,
) -> PagedModel:
    module.eval()
    if deterministic:
        refuse_experts(module.config)
        fix_workspace(module.device)
    try:
        shape = probe_model(module)
    except UnfitModelError as error:
        raise UnsupportedModelError(error.model_type, error.reason) from error
    model = PagedModel(module, tokenizer, shape, digest, attention, deterministic=deterministic)
    ids = check_ids(check_length(shape), model.vocabulary, model.device)
    # An unaligned chunk, a chunk that reads it, and two steps of decoding.
    rows = [ids.shape[0] // 2 + 5, *range(ids.shape[0] - 3, ids.shape[0])]
    expected = stock_rows(module, ids, rows)
    register_attention()
    module.set_attn_implementation(ATTENTION_NAME)
    if deterministic:
        module.set_output_embeddings(RowByRow(module.get_output_embeddings()))
    pool = PagePool(model.layout(PAGE_TOKENS), model.device)
    check_paged(module, model.forward, pool, ids, expected, rows)
    if deterministic:
        check_exact(str(module.config.model_type), model.forward, pool, ids)
    return model
