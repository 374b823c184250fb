"""The parts of vLLM's own types that this package reads, typed without importing vLLM."""

from collections.abc import Sequence
from typing import Any, Protocol


class PlaceholderLike(Protocol):
    """``vllm.multimodal.inputs.PlaceholderRange``: the place of an input, in tokens."""

    @property
    def offset(self) -> int:
        """The first token's position in the prompt."""

    @property
    def length(self) -> int:
        """The number of tokens that stand for the input."""

    @property
    def is_embed(self) -> Any:  # noqa: ANN401  # a tensor of bool, or None
        """Marks the tokens that embeddings replace; None: all."""


class FeatureLike(Protocol):
    """``vllm.multimodal.inputs.MultiModalFeatureSpec``: an image, a sound, a video."""

    @property
    def modality(self) -> str:
        """The kind, such as ``"image"``."""

    @property
    def identifier(self) -> str:
        """The digest of the content by vLLM, or the user's name for it."""

    @property
    def mm_position(self) -> PlaceholderLike:
        """Its place in the prompt."""


class LoraLike(Protocol):
    """``vllm.lora.request.LoRARequest``."""

    @property
    def lora_name(self) -> str:
        """The adapter's name for users."""

    @property
    def lora_int_id(self) -> int:
        """The engine's own number for it."""

    @property
    def lora_path(self) -> str:
        """The adapter's folder, or its name on a hub."""

    @property
    def load_inplace(self) -> bool:
        """Says whether the adapter may be exchanged under its number."""


class RequestLike(Protocol):
    """``vllm.v1.request.Request``."""

    @property
    def cache_salt(self) -> str | None:
        """The user's salt; requests with different salts share nothing."""

    @property
    def lora_request(self) -> LoraLike | None:
        """The request's adapter."""

    @property
    def mm_features(self) -> Sequence[FeatureLike]:
        """The inputs other than text, by their offsets."""

    @property
    def prompt_embeds(self) -> Any:  # noqa: ANN401  # a tensor, or None
        """Embeddings in place of tokens."""

    @property
    def prompt_token_ids(self) -> Sequence[int] | None:
        """The prompt; None if it is embeddings alone."""

    @property
    def resumable(self) -> bool:
        """Says whether the prompt may grow while the request runs."""

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Says whether every token has to be computed, for example for the prompt's logprobs."""
