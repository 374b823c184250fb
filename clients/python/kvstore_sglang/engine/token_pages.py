"""The tokens of a request as the store is asked for them: whole pages of text."""

from collections.abc import Sequence

import numpy as np

from kvstore_client.values.packed_tokens import TOKEN_BYTES, pack_tokens


class TokenPages:
    """Packs tokens into whole pages of ``page_tokens``, before the first that is no text.

    SGLang puts 30 bits of a content's hash in the place of an image's tokens, beyond the
    vocabulary of ``vocabulary_size`` ids. So few bits do not distinguish the images of a fleet.
    """

    def __init__(self, page_tokens: int, vocabulary_size: int) -> None:
        self._page_tokens = page_tokens
        self._vocabulary_size = vocabulary_size

    def pack(self, tokens: Sequence[int]) -> bytes:
        """Returns the packed whole pages; ``b""`` if none is text alone, or for invalid ids."""
        try:
            packed = pack_tokens(tokens)
        except ValueError:
            return b""
        ids = np.frombuffer(packed, np.dtype("<u4"))
        beyond = np.flatnonzero(ids >= self._vocabulary_size)
        count = int(beyond[0]) if len(beyond) else len(ids)
        return packed[: count // self._page_tokens * self._page_tokens * TOKEN_BYTES]
