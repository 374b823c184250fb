"""kvstore-ctl replay: replays a trace of prompts on the running store, with synthetic pages."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kvstore_client.errors import PoolExhausted
from kvstore_client.pages.reservation import Acquired, Reservation
from kvstore_client.values.packed_tokens import TOKEN_BYTES
from kvstore_ctl import store_tables
from kvstore_ctl.bench.prompt_trace import TracePrompt, prompts_of
from kvstore_ctl.bench.scratch_namespace import (
    PAGE_TOKENS,
    Before,
    Scratch,
    cleaned_up,
    evicted_pages,
    scratch,
    scratch_spec,
    tier_3_evicted,
)
from kvstore_ctl.console import AsJson, RuntimeDirOption, confirm, show, show_json, store_failures
from kvstore_ctl.store_options import require_here
from kvstore_ctl.terminal_text import counted

# One token after a prompt's pages, which is not inserted: a match leaves the last token out.
LAST = bytes(TOKEN_BYTES)
WIDTH = PAGE_TOKENS * TOKEN_BYTES


def replay(
    trace: Annotated[Path, typer.Argument(help="File with lines of JSON, plain or as .gz.")],
    *,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts. Default: all.")
    ] = None,
    page_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="Bytes of a page. Default: the size of most pages of the store."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Replays a trace of prompts, one after the other, and shows the hits.

    A line has "tokens", or "hash_ids" and "input_length" as in the traces of Mooncake, where one
    page stands for a block of 512 tokens. The command matches each prompt, inserts the missing
    pages without writing bytes into them, and releases the prompt. It does not wait for the
    times in the trace. The pages are in a namespace of their own that the command deletes at
    the end. They may evict pages of others, also in tier 3: then the command asks first.
    """
    with store_failures(), cleaned_up():
        require_here()
        prompts = list(prompts_of(trace, requests))
        spec = scratch_spec(runtime_dir, "replay", page_bytes)
        # Before the namespace is opened, because that may already take memory.
        if (pages := _at_risk(spec.before)) and not yes:
            confirm(f"The replay may evict {pages}. Continue?")
        with scratch(spec) as made:
            result = run(made, prompts, spec.before)
    if as_json:
        show_json(result)
    else:
        rows = ((name.replace("_", " "), _shown(value)) for name, value in result.items())
        show(store_tables.plain_table("replay", ("", ""), rows))


def run(made: Scratch, prompts: Iterable[TracePrompt], before: Before) -> dict[str, float]:
    """Replays prompts in a scratch namespace; returns the results, in tokens of the trace."""
    begun, counts = time.monotonic(), Counter[str]()
    mine = made.counters().counters
    for prompt in prompts:
        counts["requests"] += 1
        counts["tokens"] += prompt.token_count
        _ask(made, prompt, counts)
    made.client.flush(OPEN_SECONDS)
    seconds = time.monotonic() - begun
    after, own = made.client.admin.stats(), made.counters().counters
    evicted = own.evicted_page_count - mine.evicted_page_count
    others = evicted_pages(after.counters) - before.evicted_pages - evicted_pages(own)
    return {
        "requests": counts["requests"],
        "tokens": counts["tokens"],
        "hit_tokens": counts["hit_tokens"],
        "hit_rate": counts["hit_tokens"] / counts["tokens"] if counts["tokens"] else 0.0,
        "inserted_pages": own.inserted_page_count - mine.inserted_page_count,
        "evicted_pages": evicted,
        "evicted_pages_of_others": others,
        **tier_3_evicted(after.tier_3, before),
        "returned_pages": own.returned_page_count - mine.returned_page_count,
        "requests_cached_in_part": counts["partly"],
        "failures": counts["failures"],
        "pool_slots": made.pool().slots,
        "page_bytes": made.namespace.layout.page_bytes,
        "seconds": round(seconds, 3),
        "requests_per_second": counts["requests"] / seconds if seconds else 0.0,
    }


OPEN_SECONDS = 30.0


def _at_risk(before: Before) -> str:
    """Returns in words the pages that may be evicted, in memory and tier 3; empty if none."""
    pages = before.cached_pages
    memory = f"{counted(pages, 'cached page')} of others" if pages else ""
    return " and ".join(filter(None, (memory, before.tier_3_at_risk)))


def _ask(made: Scratch, prompt: TracePrompt, counts: Counter[str]) -> None:
    """Matches a prompt and inserts as many of the missing pages as have room."""
    namespace, pages = made.namespace, prompt.page_count
    with namespace.acquire(prompt.packed + LAST, total_page_count=pages) as acquired:
        matched = acquired.match.page_count
        counts["hit_tokens"] += prompt.tokens_of(matched)
        counts["failures"] += acquired.failure is not None
        if acquired.failure is not None or matched == pages:
            return
        reservation = acquired.reservation or _part(made, matched, pages - matched)
        if reservation is None:
            counts["partly"] += 1
            return
        with reservation:
            end = matched + reservation.page_count
            counts["partly"] += end < pages
            _insert(acquired, reservation, prompt.packed[matched * WIDTH : end * WIDTH], matched)


def _insert(acquired: Acquired, reservation: Reservation, packed: bytes, matched: int) -> None:
    base = acquired.match if matched else None
    reservation.insert(packed, position=matched * PAGE_TOKENS, base=base)


def _part(made: Scratch, start: int, count: int) -> Reservation | None:
    """Reserves half of the pages, or half of that, and so on; None if no page has room."""
    while count > 1:
        count //= 2
        try:
            return made.namespace.reserve(start_page=start, page_count=count)
        except PoolExhausted:
            continue
    return None


def _shown(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
