"""A check of each forward with a cache, so that only keys and values of plain tokens are shared."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from kvstore_transformers.prefix_cache import PrefixCache

# Arguments that do not change keys and values, or that ForwardWatch checks.
KNOWN: Final = frozenset(
    {"input_ids", "past_key_values", "position_ids", "cache_position", "attention_mask"}
    | {"use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict"}
    | {"output_attentions", "output_hidden_states", "output_router_logits"}
)

NOT_PLAIN: Final = "positions have to follow each other from 0, with nothing masked"


class ForwardWatch:
    """A hook that checks the arguments of each forward of a model with one cache.

    A page is matched only by its tokens. So a forward must compute plain tokens of one sequence,
    at consecutive positions from 0, with nothing masked. Until the prompt ends the tokens must be
    the prompt's. The hook announces a forward's tokens to the cache. One thread uses it.
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
        """Removes the hook."""
        self._hook.remove()

    def complete(self) -> bool:
        """Returns whether the cache has exactly the announced tokens. Waits for the device.

        Returns False if something else than the watched model wrote into the cache. Raises
        ``ValueError`` if a forward of the output was not plain.
        """
        _require(not self._later or bool(torch.stack(self._later).all()), NOT_PLAIN)
        return self._cache.settled

    def _look(
        self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Raises ``ValueError`` for a forward whose keys and values may not be the tokens' own."""
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
        """Returns the arguments for the uncached rest, if a forward passes the whole prompt.

        Assisted decoding does not read the length of the cache before its first forward.
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
            # Checked at the end, because waiting for a device at each token would cost more.
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
    """Returns one bool tensor for each kind of positions: True if they are ``[begin, end)``."""
    found = (given.get(name) for name in ("position_ids", "cache_position"))
    right = []
    for positions in found:
        if positions is not None:
            _require(positions.shape[-1] == end - begin, "there is one position for each token")
            right.append((positions == torch.arange(begin, end, device=positions.device)).all())
    return right


def _mask_right(given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Returns one bool tensor, True if the attention mask masks nothing; none without a mask."""
    mask = given.get("attention_mask")
    if mask is None:
        return []
    plain = isinstance(mask, torch.Tensor) and mask.dim() == 2  # noqa: PLR2004 - one row a sequence
    _require(plain, "the attention mask is one of its own: only a row of ones is known")
    return [(mask != 0).all()]


def _says_nothing(value: Any) -> bool:  # noqa: ANN401 - of any argument
    """Returns whether an argument has no effect, such as an empty dict of images."""
    return value is None or value is False or (isinstance(value, dict) and not value)


def _require(fine: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not fine:
        raise ValueError(message)
