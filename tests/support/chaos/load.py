"""The requests of the light workers: requests of a trace, or such as a trace has."""

import gzip
import json
import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

# A chunk of a trace, 512 tokens, becomes one page, so that a small pool holds some prompts.
PAGE_TOKENS = 4
CHUNK_BYTES = PAGE_TOKENS * 4
# Requests that are worked on at a time, so that they meet.
WINDOW = 48

# The ids of a request's chunks, each standing for all before it too.
Chunks = tuple[int, ...]


class Shape(NamedTuple):
    """The chunks of a request at most, and those that a turn of a conversation adds at most."""

    longest: int
    longest_turn: int


# A request has to fit into the pool beside others.
LONE_HOST = Shape(20, 5)
# Their pools have more room, and most pages of a request are new to the other host.
SEVERAL_HOSTS = Shape(60, 40)
# A run of seconds on a busy machine makes few requests, which have to be short.
SEVERAL_HOSTS_BRIEFLY = Shape(20, 15)


class Load:
    """Requests to draw from. ``requests`` are in the order of their coming."""

    def __init__(self, requests: Sequence[Chunks]) -> None:
        if not requests:
            raise ValueError("a load has at least one request")
        self._requests = requests

    def draw(self, chosen: random.Random, begun: int) -> bytes:
        """Returns the packed tokens of a request out of the window that begins at ``begun``.

        Now and then only a part of it, and now and then some tokens more, which end
        inside a page.
        """
        number = (begun + chosen.randrange(WINDOW)) % len(self._requests)
        chunks = self._requests[number]
        if chosen.random() < 0.2:
            chunks = chunks[: chosen.randint(1, len(chunks))]
        rest = chosen.choice((0, 0, 1, 2, 3)) * 4
        answer = _chunk_tokens(-1 - chosen.randrange(3))[:rest]
        return b"".join(map(_chunk_tokens, chunks)) + answer


def read_trace(path: Path, count: int, longest: int) -> list[Chunks]:
    """Returns the first requests of a trace in the Mooncake format: lines of JSON with hash_ids.

    Cuts requests of more than ``longest`` chunks. ``path`` may be gzipped. Raises ``ValueError``
    for lines of another format.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        found = [_chunks_of(line) for line in islice(lines, count)]
    return [chunks[:longest] for chunks in found if chunks]


def synthetic(seed: int, count: int, shape: Shape) -> list[Chunks]:
    """Returns requests that begin alike: conversations on a few system prompts, turn by turn."""
    chosen = random.Random(seed)
    fresh = iter(range(1_000_000))
    systems = [tuple(islice(fresh, chosen.randint(1, 4))) for _ in range(4)]
    open_ones: list[Chunks] = []
    requests: list[Chunks] = []
    for _ in range(count):
        if not open_ones or chosen.random() < 0.4:
            open_ones.append(chosen.choice(systems))
        turn = chosen.randrange(len(open_ones))
        added = islice(fresh, chosen.randint(1, shape.longest_turn))
        longer = (*open_ones[turn], *added)[: shape.longest]
        requests.append(longer)
        open_ones[turn] = longer
        if len(longer) == shape.longest or len(open_ones) > 12:
            del open_ones[turn]
    return requests


def load_of(trace: Path | None, seed: int, count: int, shape: Shape) -> Load:
    """Returns a trace's load, or a synthetic one without a trace."""
    if trace is not None:
        return Load(read_trace(trace, count, shape.longest))
    return Load(synthetic(seed, count, shape))


def tokens_of(chunks: Iterable[int]) -> bytes:
    """Returns the packed tokens of chunks."""
    return b"".join(map(_chunk_tokens, chunks))


def _chunk_tokens(chunk: int) -> bytes:
    return blake2b(chunk.to_bytes(8, "little", signed=True), digest_size=CHUNK_BYTES).digest()


def _chunks_of(line: str) -> Chunks:
    try:
        return tuple(map(int, json.loads(line)["hash_ids"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a line of a trace has hash_ids: {error!r}") from error
