"""What is read of vLLM's own types, so that this package's parts are typed without vLLM."""

from collections.abc import Sequence
from typing import Any, Protocol


class PlaceholderLike(Protocol):
    """Of ``vllm.multimodal.inputs.PlaceholderRange``: where an input stands, in tokens."""

    @property
    def offset(self) -> int:
        """The first token's position in the prompt."""

    @property
    def length(self) -> int:
        """How many tokens stand for the input."""

    @property
    def is_embed(self) -> Any:  # noqa: ANN401  # a tensor of bool, or None
        """Which of them are replaced by embeddings; None: all."""


class FeatureLike(Protocol):
    """Of ``vllm.multimodal.inputs.MultiModalFeatureSpec``: an image, a sound, a video."""

    @property
    def modality(self) -> str:
        """Such as ``"image"``."""

    @property
    def identifier(self) -> str:
        """Digest of the content by vLLM, or what the user calls it."""

    @property
    def mm_position(self) -> PlaceholderLike:
        """Where it stands in the prompt."""


class LoraLike(Protocol):
    """Of ``vllm.lora.request.LoRARequest``."""

    @property
    def lora_name(self) -> str:
        """What users call the adapter."""

    @property
    def lora_int_id(self) -> int:
        """The engine's own number for it."""

    @property
    def lora_path(self) -> str:
        """Its folder, or its name on a hub."""

    @property
    def load_inplace(self) -> bool:
        """Whether it may be exchanged under its number."""


class RequestLike(Protocol):
    """Of ``vllm.v1.request.Request``."""

    @property
    def cache_salt(self) -> str | None:
        """What the user gave to share with nobody who does not know it."""

    @property
    def lora_request(self) -> LoraLike | None:
        """The adapter that it runs with."""

    @property
    def mm_features(self) -> Sequence[FeatureLike]:
        """The inputs that are no text, by their offsets."""

    @property
    def prompt_embeds(self) -> Any:  # noqa: ANN401  # a tensor, or None
        """Embeddings in place of tokens."""

    @property
    def prompt_token_ids(self) -> Sequence[int] | None:
        """The prompt; None where it is embeddings alone."""

    @property
    def resumable(self) -> bool:
        """Whether its prompt may grow while it runs."""

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether every token has to be computed, such as for the prompt's logprobs."""
