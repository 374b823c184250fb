"""The cost of a match in seven KV cache groups beside one in one, over a lane of one store."""

from array import array
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from kvstore_client import (
    Client,
    ClientConfig,
    GroupInsert,
    GroupWindow,
    Namespace,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
)
from kvstore_client.testing import running_store

PAGE_BYTES = 64
# A hybrid model: full attention, and five groups of a sliding window and one of recurrent state.
FURTHER_GROUPS = 6
WINDOW_TOKENS = 1024
# Tokens that one insert publishes, as an engine does with the chunks of a long prompt.
CHUNK_TOKENS = 8192
TIMEOUT = 60.0
MICROSECONDS = 1e6


class Kind(NamedTuple):
    """A namespace to match in: the groups of its pages, and how many of their pages it has."""

    name: str
    groups: int
    every_page: bool


ONE = Kind("one group", 0, every_page=False)
ENDS = Kind("seven groups, windows at the end", FURTHER_GROUPS, every_page=False)
EVERY = Kind("seven groups, every page", FURTHER_GROUPS, every_page=True)
KINDS = (ONE, ENDS, EVERY)


def windows_of(kind: Kind, page_tokens: int) -> list[GroupWindow]:
    """Returns what a match needs: the last group is recurrent, and needs one page."""
    window = -(-WINDOW_TOKENS // page_tokens)
    groups = range(1, kind.groups + 1)
    return [GroupWindow(group, 1 if group == kind.groups else window) for group in groups]


def publish(namespace: Namespace, kind: Kind, tokens: bytes, page_tokens: int) -> None:
    """Publishes a prompt, chunk by chunk, with the pages of its groups."""
    count = len(tokens) // 4 // page_tokens
    windows = windows_of(kind, page_tokens)
    chunk = max(CHUNK_TOKENS // page_tokens, 1)
    with (
        namespace.reserve_spare(chunk * (1 + kind.groups)) as spare,
        namespace.new_reservation(start_page=0) as reservation,
    ):
        for first in range(0, count, chunk):
            end = min(first + chunk, count)
            pages = []
            for group, needed in windows:
                # A match leaves the last token to be computed, and so perhaps the last page.
                begin = first if kind.every_page else max(first, count - needed - 1)
                here = range(begin, end)
                pages.append(GroupInsert(group, here, spare.take(len(here))))
            reservation.insert(
                tokens[first * page_tokens * 4 : end * page_tokens * 4],
                position=first * page_tokens,
                spare=spare,
                slot_offsets=spare.take(end - first),
                group_pages=[each for each in pages if each.page_positions],
            )
            spare.refill()


def measure(
    token_count: int, page_tokens: int, rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Returns the figures of each kind, measured in turns in one run."""
    prompt = array("I", ((number * 7919) % 50_021 for number in range(token_count))).tobytes()
    size = (token_count // page_tokens + 2) * (3 + 2 * FURTHER_GROUPS) * PAGE_BYTES
    size = -(-size // (1 << 21)) * (1 << 21)
    arguments = ("--tier1-bytes", str(size), "--extent-bytes", str(size), "--verify-rate", "0")
    with ExitStack() as stack:
        store = stack.enter_context(running_store(*arguments))
        config = ClientConfig(call_timeout=TIMEOUT)
        client = stack.enter_context(Client(store.runtime_dir, config))
        layout = PageLayout(page_tokens, PAGE_BYTES, OpaqueContent(b"groups"))
        spaces = {}
        for kind in KINDS:
            space = client.namespace(NamespaceIdentity(kind.name.encode()), layout)
            assert space.wait_open(TIMEOUT), space.failure
            publish(space, kind, prompt, page_tokens)
            spaces[kind] = space
        samples: dict[Kind, list[list[float]]] = {kind: [] for kind in KINDS}
        for number in range(rounds):
            for kind in KINDS[:: -1 if number % 2 else 1]:
                samples[kind].append(_slice(spaces[kind], kind, prompt, page_tokens, seconds))
    return {kind.name: _figures(samples[kind], samples[ONE]) for kind in KINDS}


def _slice(
    namespace: Namespace, kind: Kind, prompt: bytes, page_tokens: int, seconds: float
) -> list[float]:
    """Returns the microseconds of each match within some time, its release not included."""
    windows = windows_of(kind, page_tokens)
    pages = (len(prompt) // 4 - 1) // page_tokens
    found: list[float] = []
    until = perf_counter() + seconds
    while perf_counter() < until or not found:
        begin = perf_counter()
        match = namespace.match(prompt, groups=windows)
        found.append((perf_counter() - begin) * MICROSECONDS)
        assert match.failure is None, match.failure
        assert match.page_count == pages
        match.release()
    return found


def _figures(own: list[list[float]], one: list[list[float]]) -> dict[str, Any]:
    """Returns medians of the rounds' medians, and the median of the rounds' ratios."""
    return {
        "p50_us": round(median(map(median, own)), 1),
        "times_one_group": round(
            median(median(a) / median(b) for a, b in zip(own, one, strict=True)), 2
        ),
        "samples": sum(map(len, own)),
        "rounds_us": [round(median(each), 1) for each in own],
    }


def group_figures(token_count: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the figures at 256 and at 16 tokens a page."""
    return {
        "tokens": token_count,
        "groups": 1 + FURTHER_GROUPS,
        "window_tokens": WINDOW_TOKENS,
        "page_tokens": {
            str(each): measure(token_count, each, rounds, seconds) for each in (256, 16)
        },
    }
