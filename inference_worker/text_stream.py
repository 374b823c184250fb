"""Text from ids that come one at a time."""

from collections.abc import Callable
from typing import Final

from inference_worker.tokenizer import Tokenizer

# What a tokenizer gives for bytes that are no character, or none yet.
UNFINISHED: Final = "\ufffd"


class TextStream:
    """Hands on text as soon as no later id can change it: a character may take several ids.

    Call :meth:`end` when there are no more. Not thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, put: Callable[[str], None]) -> None:
        """Start without text; ``put`` is called with each piece, never an empty one."""
        self._tokenizer = tokenizer
        self._put = put
        self._ids: list[int] = []
        self._done = 0

    def add(self, token: int) -> None:
        """Take one id."""
        self._ids.append(token)
        self._hand_on(self._tokenizer.decode(self._ids).rstrip(UNFINISHED))

    def end(self) -> None:
        """Hand on what is left, finished or not."""
        self._hand_on(self._tokenizer.decode(self._ids))

    def _hand_on(self, text: str) -> None:
        if len(text) > self._done:
            self._put(text[self._done :])
            self._done = len(text)
