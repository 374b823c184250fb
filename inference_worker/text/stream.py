"""Text from ids that come one at a time."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from inference_worker.model.tokenizer import Tokenizer

# What a tokenizer gives for bytes that are no character, or none yet.
UNFINISHED: Final = "\ufffd"
# Of a prompt's end, so many ids decide how the first id after it is spelt (as in vLLM).
CONTEXT_IDS: Final = 5
# Ids without text, or of unfinished characters, after which some are let go: a character has at
# most 4 bytes, so what is further back is decided.
MANY_IDS: Final = 32
CHARACTER_IDS: Final = 4


class TextStream:
    """Hands on text as soon as no later id can change it: a character may take several ids.

    It decodes a window of the last ids each time, so that its work grows with their number alone.
    The window begins with ids whose text was handed on: how an id is spelt depends on what is
    before it. Call :meth:`end` when there are no more. Not thread-safe.
    """

    def __init__(
        self, tokenizer: Tokenizer, put: Callable[[str], None], context: Sequence[int] = ()
    ) -> None:
        """Starts behind ``context``; ``put`` is called with each piece, never an empty one."""
        self._tokenizer = tokenizer
        self._put = put
        self._ids: list[int] = list(context[-CONTEXT_IDS:])
        text = tokenizer.decode(self._ids) if self._ids else ""
        finished = text.rstrip(UNFINISHED)
        # The first ids of the window, all of whose text was handed on.
        self._context = len(self._ids) if finished == text else 0
        # Characters of the window's text that were handed on.
        self._done = len(finished)
        # The window's text as it was, where its end is unfinished.
        self._before = "" if finished == text else text

    def add(self, token: int) -> None:
        """Takes one id."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text != self._before:
            self._leave_out(text)
        finished = text.rstrip(UNFINISHED)
        said = self._hand_on(finished)
        if finished == text and said:
            self._begin_window(self._context)
        elif len(self._ids) > self._context + MANY_IDS:
            if finished == text:
                # None of them has any text.
                del self._ids[self._context :]
            else:
                self._let_go(text)

    def end(self) -> None:
        """Hands on what is left, finished or not."""
        text = self._tokenizer.decode(self._ids)
        self._leave_out(text)
        self._hand_on(text)

    def _leave_out(self, text: str) -> None:
        """Takes for the context's own what no id after it changed, finished or not."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._before, text, strict=False))
        self._done = max(self._done, sum(1 for _ in same))
        self._before = ""

    def _hand_on(self, text: str) -> bool:
        """Hands on what is new of the window's text; tells whether something is."""
        if len(text) <= self._done:
            return False
        self._put(text[self._done :])
        self._done = len(text)
        return True

    def _begin_window(self, start: int) -> None:
        """Forgets the first ids; the others are context from now on."""
        del self._ids[:start]
        self._context = len(self._ids)
        self._done = len(self._tokenizer.decode(self._ids))

    def _let_go(self, text: str) -> None:
        """Hands on what is no character, up to a place where the text can be cut."""
        last = len(self._ids) - CHARACTER_IDS
        for cut in range(last, last - CHARACTER_IDS, -1):
            before = self._tokenizer.decode(self._ids[:cut])
            if before + self._tokenizer.decode(self._ids[cut:]) == text:
                self._hand_on(before)
                del self._ids[:cut]
                self._context = self._done = 0
                return
