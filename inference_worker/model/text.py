"""Text from token ids: as it streams, up to a stop string, and safe for a terminal."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from inference_worker.model.tokenizer import Tokenizer

# A tokenizer's text for bytes that are not a character, or not yet.
UNFINISHED: Final = "\ufffd"
# The last ids of a prompt that decide the spelling of the first id after it (as in vLLM).
CONTEXT_IDS: Final = 5
# After this many ids without text, or of unfinished characters, the oldest are dropped. A character
# has at most 4 bytes, so earlier text is final.
MANY_IDS: Final = 32
CHARACTER_IDS: Final = 4
# Characters that begin a terminal's control sequence, or are one: C0 without tab and newline, DEL,
# C1.
_CONTROLS: Final = MappingProxyType(
    {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
)


class TextStream:
    """Passes on text as soon as no later id can change it: a character may take several ids.

    It decodes a window of the last ids each time, so its work grows with their number only. The
    window begins with ids whose text was already passed on, because an id's spelling depends on the
    ids before it. Call :meth:`end` after the last id. Not thread-safe.
    """

    def __init__(
        self, tokenizer: Tokenizer, put: Callable[[str], None], context: Sequence[int] = ()
    ) -> None:
        """Starts after ``context``; calls ``put`` with each piece, never an empty one."""
        self._tokenizer = tokenizer
        self._put = put
        self._ids: list[int] = list(context[-CONTEXT_IDS:])
        text = tokenizer.decode(self._ids) if self._ids else ""
        finished = text.rstrip(UNFINISHED)
        # The number of first ids of the window whose text was passed on.
        self._context = len(self._ids) if finished == text else 0
        # Characters of the window's text that were passed on.
        self._done = len(finished)
        # The window's text before, if its end is unfinished.
        self._before = "" if finished == text else text

    def add(self, token: int) -> None:
        """Adds one id."""
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
                # None of these ids has any text.
                del self._ids[self._context :]
            else:
                self._let_go(text)

    def end(self) -> None:
        """Passes on the rest, finished or not."""
        text = self._tokenizer.decode(self._ids)
        self._leave_out(text)
        self._hand_on(text)

    def _leave_out(self, text: str) -> None:
        """Skips the context's own text, which no later id changed, finished or not."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self._before, text, strict=False))
        self._done = max(self._done, sum(1 for _ in same))
        self._before = ""

    def _hand_on(self, text: str) -> bool:
        """Passes on the new part of the window's text; returns whether there was any."""
        if len(text) <= self._done:
            return False
        self._put(text[self._done :])
        self._done = len(text)
        return True

    def _begin_window(self, start: int) -> None:
        """Drops the first ids; the others are the new context."""
        del self._ids[:start]
        self._context = len(self._ids)
        self._done = len(self._tokenizer.decode(self._ids))

    def _let_go(self, text: str) -> None:
        """Passes on invalid bytes, up to a place where the text can be cut."""
        last = len(self._ids) - CHARACTER_IDS
        for cut in range(last, last - CHARACTER_IDS, -1):
            before = self._tokenizer.decode(self._ids[:cut])
            if before + self._tokenizer.decode(self._ids[cut:]) == text:
                self._hand_on(before)
                del self._ids[:cut]
                self._context = self._done = 0
                return


class StopText:
    """Holds back text that may become a stop string, and cuts the text before the first one.

    The first one does not depend on the pieces: it is the one that ends first, and the longest of
    those that end together. The time is linear in the characters (Knuth, Morris and Pratt). Not
    thread-safe.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` for an empty string."""
        if not all(stops):
            raise ValueError("a stop string has at least one character")
        self._stops = [(stop, _borders(stop)) for stop in stops]
        # For each stop string, how much of its beginning the text ends with.
        self._found = [0] * len(self._stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Adds a piece; returns the text that is certainly not part of a stop string."""
        text = self._held + text
        for place in range(len(self._held), len(text)):
            ended = self._step(text[place])
            if ended:
                self.stopped = True
                self._held = ""
                return text[: place + 1 - ended]
        held = max(self._found, default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Returns what was held back, since nothing follows it."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> int:
        """Adds one character; returns the length of the stop string that ends with it, or 0."""
        ended = 0
        for number, (stop, borders) in enumerate(self._stops):
            found = self._found[number]
            while found and stop[found] != character:
                found = borders[found]
            found += stop[found] == character
            self._found[number] = found
            if found == len(stop):
                ended = max(ended, found)
        return ended


def _borders(stop: str) -> list[int]:
    """Returns, for each length of a beginning, the longest shorter one that it also ends with."""
    borders = [0, 0]
    for place in range(1, len(stop)):
        found = borders[place]
        while found and stop[found] != stop[place]:
            found = borders[found]
        borders.append(found + (stop[found] == stop[place]))
    return borders


def terminal_text(text: str) -> str:
    """Replaces each control character by U+FFFD, except tab and newline."""
    return text.translate(_CONTROLS)
