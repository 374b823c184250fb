"""What each forward that a cache is given to is of, so that no other keys and values are shared."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from kvstore_transformers.prefix_cache import PrefixCache

# What keys and values do not depend on, or what is looked at here.
KNOWN: Final = frozenset(
    {"input_ids", "past_key_values", "position_ids", "cache_position", "attention_mask"}
    | {"use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict"}
    | {"output_attentions", "output_hidden_states", "output_router_logits"}
)

NOT_PLAIN: Final = "positions have to follow each other from 0, with nothing masked"


class ForwardWatch:
    """Looks at the arguments of a model's forwards with one cache, before each of them.

    A page is matched by its tokens alone. So a forward has to be of plain tokens of one sequence,
    at the positions that follow each other from 0, nothing masked, and of the prompt's own while
    the prompt lasts. What a forward is of is announced to the cache. One thread uses it.
    """

    def __init__(
        self, module: PreTrainedModel, cache: PrefixCache, prompt_ids: torch.Tensor
    ) -> None:
        """Watches from now on; ``prompt_ids`` are int64 ``[n]``."""
        self._cache = cache
        self._prompt_ids = prompt_ids
        self._names = list(inspect.signature(module.forward).parameters)
        self._later: list[torch.Tensor] = []
        self._hook = module.register_forward_pre_hook(self._look, with_kwargs=True)

    def stop(self) -> None:
        """Watches no more."""
        self._hook.remove()

    def complete(self) -> bool:
        """Returns whether all that the cache has is of the tokens that it was told of.

        It is not where something was computed with it beside the model. Raises ``ValueError`` for a
        forward of the output that was no plain one. Waits for the device.
        """
        _require(not self._later or bool(torch.stack(self._later).all()), NOT_PLAIN)
        return self._cache.settled

    def _look(
        self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Raises ``ValueError`` for a forward of which the keys and values could be others."""
        given = {**dict(zip(self._names, arguments, strict=False)), **keywords}
        if given.get("past_key_values") is not self._cache:
            return arguments, keywords
        _require(not module.training, "the model is in training mode: call its eval()")
        _require(not torch.is_grad_enabled(), "gradients are on: use torch.no_grad()")
        _require(given.get("use_cache") is not False, "use_cache is False, with a cache")
        _require(self._cache.settled, "a forward before this one failed: begin the prompt again")
        strange = {name for name, value in given.items() if not _says_nothing(value)} - KNOWN
        _require(not strange, f"keys and values may depend on {sorted(strange)}, not tokens alone")
        ids = given.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.shape[:-1] != (1,):
            raise ValueError("one sequence is computed at a time: no batch, beams or embeddings")
        rest = self._without_cached(ids, keywords)
        self._require_plain(rest.get("input_ids", ids)[0], {**given, **rest})
        self._cache.announce(rest.get("input_ids", ids)[0])
        return arguments, {**keywords, **rest}

    def _without_cached(self, ids: torch.Tensor, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Gives what is left of a prompt that comes whole, and has a beginning that is cached.

        Assisted decoding does not look at what a cache has before its first forward.
        """
        begin, positions = self._cache.token_count, keywords.get("position_ids")
        if not 0 < begin < len(self._prompt_ids) or ids.shape[1] <= begin or positions is None:
            return {}
        if "input_ids" not in keywords or bool((positions[..., 0] != 0).any()):
            return {}
        self._require_prompt(ids[0], 0)
        return {"input_ids": ids[:, begin:], "position_ids": positions[..., begin:]}

    def _require_plain(self, ids: torch.Tensor, given: Mapping[str, Any]) -> None:
        begin = self._cache.token_count
        end = begin + ids.shape[0]
        right = [*_positions_right(begin, end, given), *_mask_right(given)]
        if begin >= len(self._prompt_ids):
            # Looked at in the end: to wait for a device at each token would cost more than it does.
            self._later += right
            return
        for each in right:
            _require(bool(each), NOT_PLAIN)
        self._require_prompt(ids, begin)

    def _require_prompt(self, ids: torch.Tensor, begin: int) -> None:
        wanted = self._prompt_ids[begin : begin + ids.shape[0]]
        same = torch.equal(ids[: len(wanted)], wanted.to(ids.device))
        _require(same, "these are not the prompt's tokens: pass the prompt as it is, **prompt")


def _positions_right(begin: int, end: int, given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Say of each kind of positions, as a tensor of one bool, whether they are ``[begin, end)``."""
    found = (given.get(name) for name in ("position_ids", "cache_position"))
    right = []
    for positions in found:
        if positions is not None:
            _require(positions.shape[-1] == end - begin, "there is one position for each token")
            right.append((positions == torch.arange(begin, end, device=positions.device)).all())
    return right


def _mask_right(given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Says whether an attention mask, where there is one, masks nothing."""
    mask = given.get("attention_mask")
    if mask is None:
        return []
    plain = isinstance(mask, torch.Tensor) and mask.dim() == 2  # noqa: PLR2004 - one row a sequence
    _require(plain, "the attention mask is one of its own: only a row of ones is known")
    return [(mask != 0).all()]


def _says_nothing(value: Any) -> bool:  # noqa: ANN401 - of any argument
    """Returns whether a forward is as if it were not given this, such as no images."""
    return value is None or value is False or (isinstance(value, dict) and not value)


def _require(fine: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not fine:
        raise ValueError(message)
