"""kvstore-ctl bench: a load against the running store, in a namespace of its own."""

import os
from typing import Annotated, Any, NamedTuple

import typer

from kvstore_client.errors import StoreUnavailable
from kvstore_ctl import store_tables
from kvstore_ctl.bench.load_client import BROKEN, CALLS, Load, Report, begin, run_client
from kvstore_ctl.bench.scratch_namespace import (
    PAGE_TOKENS,
    Pool,
    cleaned_up,
    scratch,
    scratch_spec,
    tier_3_evicted,
)
from kvstore_ctl.console import AsJson, RuntimeDirOption, confirm, show, show_json, store_failures
from kvstore_ctl.store_options import require_here
from kvstore_ctl.terminal_text import counted

MOST_SECONDS = 600.0
MOST_CLIENTS = 64
MOST_KEPT = 64
PERCENTILES = (50, 90, 99)
MILLISECONDS = 1e3
# The row of a call that was not made: a count of zero, and no times.
NEVER = (0, 0.0, *[""] * (len(PERCENTILES) + 1))


class Plan(NamedTuple):
    """The load's bound on pages of the pool, and the suffixes that each client keeps cached."""

    most_pages: int
    kept_suffixes: int
    evicts_others: int


def bench(  # noqa: PLR0913 - each is an option
    *,
    clients: Annotated[
        int, typer.Option(min=1, max=MOST_CLIENTS, help="Client processes at the same time.")
    ] = 2,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds of load.")
    ] = 5.0,
    prefixes: Annotated[int, typer.Option(min=1, help="Prefixes that prompts share.")] = 4,
    prefix_tokens: Annotated[
        int, typer.Option(min=PAGE_TOKENS, help="Tokens of each shared prefix, in whole pages.")
    ] = 512,
    suffix_tokens: Annotated[
        int,
        typer.Option(min=PAGE_TOKENS, help="Tokens of a prompt after its prefix, in whole pages."),
    ] = 128,
    share: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Largest part of the pool's slots that the load fills."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the random prompts.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Puts a load on the store, and shows the time and rate of calls, and the hit rate.

    Three calls in ten are matches; the others are acquires. Half of the acquires are of new
    prompts: their pages are inserted, and the oldest ones removed. The load writes no bytes into
    the pages. They have the size of most pages of the store, in a namespace of their own that
    the command deletes at the end. The load fills at most --share of the pool, and the command
    refuses to run if that is too little. If tier 3 has pages, which the load may evict, the
    command asks first.
    """
    with store_failures(), cleaned_up():
        require_here()
        spec = scratch_spec(runtime_dir, "bench")
        if (at_risk := spec.before.tier_3_at_risk) and not yes:
            confirm(f"The load may evict {at_risk}. Continue?")
        if spec.before.cached_pages and not spec.before.has_room:
            typer.echo(
                f"kvstore-ctl: the store has no memory for pages of"
                f" {counted(spec.page_bytes, 'byte')} yet, and may evict some of"
                f" {counted(spec.before.cached_pages, 'cached page')} to get it",
                err=True,
            )
        pages = (prefix_tokens // PAGE_TOKENS, suffix_tokens // PAGE_TOKENS)
        with scratch(spec) as made:
            pool = made.pool()
            plan = plan_of(pool, share, clients, prefixes, pages)
            if plan.evicts_others:
                typer.echo(
                    f"kvstore-ctl: the load may evict up to {plan.evicts_others} of"
                    f" {counted(pool.others, 'cached page')} of other namespaces",
                    err=True,
                )
            load = Load(spec, seconds, prefixes, *pages, plan.kept_suffixes, seed)
            reports = _run(load, clients)
            tier_3 = tier_3_evicted(made.client.admin.stats().tier_3, spec.before)
    result = _result(reports, plan) | tier_3
    if as_json:
        show_json(result)
        return
    calls = result["calls"]
    rows = [(name, *calls[name].values()) if name in calls else (name, *NEVER) for name in CALLS]
    columns = ("call", "count", "per second", *(f"p{n}, ms" for n in PERCENTILES), "max, ms")
    show(store_tables.plain_table("calls", columns, rows))
    typer.echo(
        f"{result['calls_per_second']:.0f} calls and {result['tokens_per_second']:.0f} tokens per"
        f" second, hit rate {result['hit_rate']:.1%}, {result['misses']} failed or without slots;"
        f" used at most {counted(plan.most_pages, 'page')} of the pool, and removed all of them"
    )
    for evicted in tier_3.values():
        typer.echo(f"tier 3 evicted {counted(evicted, 'page')} meanwhile")


def plan_of(pool: Pool, share: float, clients: int, prefixes: int, pages: tuple[int, int]) -> Plan:
    """Returns a plan that keeps a load within its share of a pool's slots.

    ``pages`` are the pages of a prefix and of a suffix. Raises ``ValueError`` if the share is too
    small for the prefixes and the holds of all clients.
    """
    prefix_pages, suffix_pages = pages
    most = int(pool.slots * share)
    fixed = prefixes * prefix_pages + clients * (prefix_pages + suffix_pages)
    kept = (most - fixed) // (clients * suffix_pages)
    if kept < 1:
        needed = counted(fixed + clients * suffix_pages, "page")
        raise ValueError(
            f"{counted(clients, 'client')} with {counted(prefixes, 'prefix', 'prefixes')} need"
            f" {needed}, but --share {share:g} of the pool's {counted(pool.slots, 'slot')} is"
            f" {most}: set fewer --clients, --prefixes or tokens, or a larger --share"
        )
    kept = min(kept, MOST_KEPT)
    used = fixed + kept * clients * suffix_pages
    return Plan(used, kept, min(max(used - pool.free, 0), pool.others))


def percentile(ordered: list[float], share: float) -> float:
    """Returns the value that ``share`` (0 to 1) of the ordered values do not exceed."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _run(load: Load, clients: int) -> list[Report]:
    # Imported here, because probes start other commands every second and do not need it.
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
    from multiprocessing import active_children, get_context  # noqa: PLC0415

    context = get_context("spawn")
    barrier = context.Barrier(clients)
    with ProcessPoolExecutor(
        clients, mp_context=context, initializer=begin, initargs=(barrier, os.getpid())
    ) as pool:
        try:
            answers = list(pool.map(run_client, [load] * clients, range(clients)))
        except BaseException:
            barrier.abort()
            for each in active_children():
                each.terminate()
            raise
    # The reason why a client could not begin comes before the others' broken barrier.
    for failure in sorted(
        (each for each in answers if isinstance(each, str)), key=lambda each: each == BROKEN
    ):
        raise StoreUnavailable(failure)
    return [each for each in answers if isinstance(each, Report)]


def _result(reports: list[Report], plan: Plan) -> dict[str, Any]:
    longest = max(each.seconds for each in reports)
    calls = {}
    for name in CALLS:
        taken = sorted(second for each in reports for second in each.calls[name])
        if taken:
            calls[name] = {
                "count": len(taken),
                "per_second": round(len(taken) / longest, 1),
                **{
                    f"p{n}_ms": round(percentile(taken, n / 100) * MILLISECONDS, 3)
                    for n in PERCENTILES
                },
                "max_ms": round(taken[-1] * MILLISECONDS, 3),
            }
    asked = sum(each.asked_tokens for each in reports)
    matched = sum(each.matched_tokens for each in reports)
    return {
        "seconds": longest,
        "clients": len(reports),
        "calls": calls,
        "calls_per_second": sum(each["count"] for each in calls.values()) / longest,
        "tokens_per_second": asked / longest,
        "hit_rate": matched / asked if asked else 0.0,
        "misses": sum(each.misses for each in reports),
        "most_pages": plan.most_pages,
    }
