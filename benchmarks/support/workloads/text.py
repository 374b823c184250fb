"""Prompts of exact lengths in tokens, made of the demo's text."""

from collections.abc import Sequence
from importlib.resources import files
from random import Random
from typing import Final

from inference_worker.model.tokenizer import Tokenizer

# Tokens in which two openings differ: a page.
UNIQUE_TOKENS: Final = 16


class Text:
    """The demo's text in paragraphs, as ids of one tokenizer. The seed decides which are drawn.

    Everything is cut at its length, so a text may end in the middle of a sentence.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        source = files("inference_worker") / "data" / "demo_text.txt"
        paragraphs = source.read_text(encoding="utf-8").split("\n\n")
        self._pieces = [tokenizer.encode(f"{each.strip()}\n\n") for each in paragraphs]
        # Headings are left out, because they begin alike.
        self._long = [each for each in self._pieces if len(each) > 2 * UNIQUE_TOKENS]
        self._encode = tokenizer.encode
        self._begin_ids = tokenizer.begin_ids
        self._random = Random(f"text {seed}")
        self._given: set[tuple[int, ...]] = set()

    @property
    def random(self) -> Random:
        """The random stream that decides what is drawn."""
        return self._random

    def opening(self, token_count: int, *, title: str = "") -> list[int]:
        """Returns a sequence's beginning: ``title``, part of a paragraph, and others.

        It has ``token_count`` ids with the tokenizer's own first ones. No other opening has the
        same first ``UNIQUE_TOKENS``.
        """
        head = [*self._begin_ids, *(self._encode(f"{title}\n") if title else ())]
        while True:
            first = self._random.choice(self._long)
            ids = [*head, *first[self._random.randrange(len(first) - UNIQUE_TOKENS) :]]
            if self._new(ids[:UNIQUE_TOKENS]):
                break
        while len(ids) < token_count:
            order = self._random.sample(self._pieces, len(self._pieces))
            ids += [each for piece in order for each in piece]
        return ids[:token_count]

    def passage(self, token_count: int, *, before: str = "", after: str = "") -> list[int]:
        """Returns ``token_count`` ids: ``before``, a run of the text, ``after``. None comes twice.

        Raises ``ValueError`` if there is no room for any of the text.
        """
        head, tail = self._encode(before), self._encode(after)
        room = token_count - len(head) - len(tail)
        if room < 1:
            raise ValueError(f"{token_count} tokens have no room for {before!r} and {after!r}")
        while True:
            ids = [*head, *self._stream(room), *tail]
            if self._new(ids):
                return ids

    def _stream(self, room: int) -> list[int]:
        first = self._random.randrange(len(self._pieces))
        joined: Sequence[int] = [
            each for piece in (*self._pieces[first:], *self._pieces) for each in piece
        ]
        start = self._random.randrange(len(self._pieces[first]))
        return list(joined[start : start + room])

    def _new(self, ids: Sequence[int]) -> bool:
        """Returns whether these ids are new, and records them."""
        key = tuple(ids)
        fresh = key not in self._given
        self._given.add(key)
        return fresh
