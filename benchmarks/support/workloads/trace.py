"""A part of a conversation trace as prompts of token ids, scaled down."""

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from support.replay.trace import BLOCK_TOKENS, Request

# Letters and marks of a byte tokenizer, and ordinary tokens in others.
FIRST_ID: Final = 32
LAST_ID: Final = 126


class Turn(NamedTuple):
    """One request: its time, in seconds from the first, and its prompt.

    ``known_tokens`` is the part of it that an endless cache would have after all requests before
    it.
    """

    time: float
    ids: list[int]
    known_tokens: int


def turns(requests: Sequence[Request], block_tokens: int, longest: int) -> list[Turn]:
    """Returns a trace's requests in time order, each block of 512 as ``block_tokens`` tokens.

    A block's tokens are drawn by its id alone, so two prompts share what their ids share. A partial
    last block has the same share of them, at least one. Prompts of more than ``longest`` tokens are
    left out.
    """
    seen: set[int] = set()
    found = []
    for each in sorted(requests, key=lambda request: request.time):
        if not each.ids:
            continue
        *whole, _ = each.ids
        rest = each.token_count - len(whole) * BLOCK_TOKENS
        part = min(block_tokens, max(1, round(rest * block_tokens / BLOCK_TOKENS)))
        lengths = [block_tokens] * len(whole) + [part]
        if sum(lengths) > longest:
            continue
        ids = [
            token
            for block, length in zip(each.ids, lengths, strict=True)
            for token in block_ids(block, block_tokens)[:length]
        ]
        known = sum(
            length for block, length in zip(each.ids, lengths, strict=True) if block in seen
        )
        seen.update(each.ids)
        # The last token is run for its logits. Only a full hit's next token would make it known.
        found.append(Turn(each.time, ids, known))
    return found


def block_ids(block: int, block_tokens: int) -> list[int]:
    """Returns the tokens that stand for a block."""
    return Random(f"block {block}").choices(range(FIRST_ID, LAST_ID + 1), k=block_tokens)
