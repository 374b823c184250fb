"""The data of fetch.py: prompts, the KV of one of them, and the shapes of both."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from kvstore_client import PagedContent, PageLayout

PAGE_TOKENS = 16
# Two prompts whose control path is timed, and the prompt whose bytes are copied.
TOKENS = (2_048, 100_000)
BYTES_TOKENS = 2_048
# 64 MiB for 2,048 tokens: 16 layers, 4 KV heads of 128, bfloat16.
LARGE = PagedContent(layer_count=16, kv_head_count=4, head_dim=128, dtype="bfloat16")
# A control path does not depend on the bytes: 1 KiB a page, so that 100,000 tokens fit.
SMALL = PagedContent(layer_count=1, kv_head_count=1, head_dim=16, dtype="bfloat16")
LARGE_LAYOUT = PageLayout.paged(PAGE_TOKENS, LARGE)
SMALL_LAYOUT = PageLayout.paged(PAGE_TOKENS, SMALL)
# Consecutive hits that are timed together. A peer's long ones are fewer, to save time.
ROW = 10
PEER_ROW = {2_048: ROW, 100_000: 2}
PAGES = BYTES_TOKENS // PAGE_TOKENS
PAYLOAD_BYTES = PAGES * LARGE_LAYOUT.page_bytes
SEED = 5

# Nanoseconds by the name of the part. "whole" is all of it.
Times: TypeAlias = Mapping[str, Sequence[int]]


class Pace(NamedTuple):
    """The length of a slice: ``least`` times, then until ``seconds`` or ``most`` times."""

    seconds: float
    least: int
    most: int


def prompt_of(token_count: int) -> "array[int]":
    """Returns the prompt of this length."""
    return array("I", range(token_count, 2 * token_count))


def payload() -> bytes:
    """Returns the KV of the prompt whose bytes are copied: page after page, without a pattern."""
    return np.random.default_rng(SEED).bytes(PAYLOAD_BYTES)


def repeat(pace: Pace, names: Sequence[str], once: Callable[[], Sequence[int]]) -> Times:
    """Calls ``once``, which returns nanoseconds for each of ``names``, at a pace."""
    rows: list[Sequence[int]] = []
    end = time.monotonic() + pace.seconds
    while len(rows) < pace.least or (time.monotonic() < end and len(rows) < pace.most):
        rows.append(once())
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}
