"""A transformers Cache with the keys and values of every token, and the token ids."""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

from kvstore_transformers.model_probe import ModelShape
from kvstore_transformers.token_layer import TokenLayer, empty_rows


class PrefixCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of one sequence, in ``TokenLayer``s, and its token ids.

    Call :meth:`announce` with the tokens before each forward. A forward without it also works, as
    with any cache, but then ``settled`` is False.
    """

    def __init__(
        self, shape: ModelShape, dtype: torch.dtype, device: torch.device, capacity: int
    ) -> None:
        """Begins empty, with memory for ``capacity`` tokens, which grows if needed."""
        like = torch.empty((2, 0, shape.kv_head_count, shape.head_dim), dtype=dtype, device=device)
        super().__init__(
            layers=[TokenLayer(empty_rows(like, capacity), window) for window in shape.windows]
        )
        self._pieces: list[torch.Tensor] = []
        self.token_count = 0

    @property
    def token_layers(self) -> list[TokenLayer]:
        """The layers."""
        return list(self.layers)

    @property
    def settled(self) -> bool:
        """True if each layer has exactly the announced tokens, so no forward is under way."""
        return all(layer.count == self.token_count for layer in self.token_layers)

    def token_ids(self) -> list[int]:
        """Returns the ids of the announced tokens, in order."""
        return torch.cat(self._pieces).tolist() if self._pieces else []

    def announce(self, ids: torch.Tensor) -> None:
        """Notes that a forward of these tokens, int64 ``[n]``, comes next."""
        # Counted first, so that the cache is not settled if this is interrupted in between.
        self.token_count += ids.shape[0]
        self._pieces.append(ids.detach().clone())

    def begin(self, ids: Sequence[int]) -> None:
        """Sets the tokens, after their keys and values were written into the layers' rows."""
        self.announce(torch.tensor(ids, dtype=torch.int64, device=self.token_layers[0].device))
        for layer in self.token_layers:
            layer.resize(len(ids))

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last ``-tokens_to_remove`` tokens, as :meth:`TokenLayer.crop`."""
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self._pieces = [torch.cat(self._pieces)[:tokens_to_remove]]
            self.token_count += tokens_to_remove

    def reset(self) -> None:
        """Removes all tokens."""
        super().reset()
        self._pieces.clear()
        self.token_count = 0
