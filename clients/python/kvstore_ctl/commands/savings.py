"""kvstore-ctl savings: the prefill that shared prefixes save, calculated or counted."""

from typing import Annotated, Any, NamedTuple

import typer

from kvstore.v1 import lease_pb2
from kvstore_ctl import store_tables
from kvstore_ctl.console import AsJson, RuntimeDirOption, connected, show, show_json
from kvstore_ctl.terminal_text import counted
from kvstore_ctl.top.rates import counted_here
from kvstore_ctl.typed_values import namespaces_of, title_of


class Savings(NamedTuple):
    """Prefill work without a cache and with one.

    ``tokens_without`` and ``tokens_with`` are the prompt tokens computed without and with a cache.
    ``tokens_saved`` is their difference, and ``share_saved`` its share of ``tokens_without``, 0 to
    1. ``speed_up_bound`` is the largest speed-up of the prefill, if its time is proportional to
    its tokens and reuse takes no time. It is None without a bound, if nothing is left to compute.
    ``seconds_saved`` is the time of prefill, None if no speed is known.
    """

    tokens_without: int
    tokens_with: int
    tokens_saved: int
    share_saved: float
    speed_up_bound: float | None
    seconds_saved: float | None


def prefix_savings(
    shared: int, suffix: int, requests: int, prefill_tokens_per_second: float = 0.0
) -> Savings:
    """Returns the savings of ``requests`` prompts with a common prefix.

    Each prompt begins with the same ``shared`` tokens, which only the first one computes, and
    ends with ``suffix`` tokens of its own. Without a cache that is ``requests * (shared +
    suffix)`` tokens, and with one ``shared + requests * suffix``. A speed of 0 tokens a second
    means unknown. Raises ``ValueError`` for a negative number.
    """
    if min(shared, suffix, requests, prefill_tokens_per_second) < 0:
        raise ValueError("tokens, requests and tokens a second must not be negative")
    computed = shared + requests * suffix if requests else 0
    return savings_of(requests * (shared + suffix), computed, prefill_tokens_per_second)


def savings_of(
    tokens_without: int, tokens_with: int, prefill_tokens_per_second: float = 0.0
) -> Savings:
    """Returns the savings if ``tokens_without`` were asked for and ``tokens_with`` computed.

    A speed of 0 tokens a second means unknown. Without asked tokens nothing is saved.
    """
    saved = tokens_without - tokens_with
    bound = tokens_without / tokens_with if tokens_with else None
    return Savings(
        tokens_without,
        tokens_with,
        saved,
        saved / tokens_without if tokens_without else 0.0,
        bound if tokens_without else 1.0,
        saved / prefill_tokens_per_second if prefill_tokens_per_second else None,
    )


GIVEN = "Seconds are the saved tokens at the --prefill-rate of {rate:g} tokens a second."
REPORTED = (
    "Seconds cover {timed} of the {saved}: those of engines that reported their prefill speed,"
    " each at its own speed. Set --prefill-rate to count all at one speed."
)
TOO_FEW = (
    "Seconds are unknown: no engine that matched these tokens had reported its prefill speed."
    " kvstore-worker and the connectors for vLLM report it after they have computed enough tokens"
    " to measure it. Set --prefill-rate to count all at one speed."
)
DELETED = "Not included: {deleted} asked in namespaces that are deleted."
NOT_KNOWN = "Seconds are unknown: set an engine's prefill speed with --prefill-rate."


def savings(  # each is an option
    *,
    shared: Annotated[
        int | None, typer.Option(min=0, help="Tokens of the prefix that all prompts share.")
    ] = None,
    suffix: Annotated[int, typer.Option(min=0, help="Tokens of each prompt after it.")] = 0,
    requests: Annotated[int, typer.Option(min=0, help="Number of prompts.")] = 1,
    prefill_rate: Annotated[
        float, typer.Option(min=0, help="Prompt tokens that the engine computes in a second.")
    ] = 0.0,
    namespace: Annotated[
        str, typer.Option(help="Count only namespaces whose id or name begins with this.")
    ] = "",
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Calculates the savings of a shared prefix; without --shared, shows the store's savings.

    The calculation needs no store: the first request computes the shared tokens, and the others
    match them. The store's counters are those of its existing namespaces.
    """
    timed = deleted = saved = 0
    if shared is not None:
        rows = {"calculated": prefix_savings(shared, suffix, requests, prefill_rate)}
    else:
        with connected(runtime_dir) as admin:
            stats = admin.stats()
            here = counted_here(stats)
            spaces = {} if namespace else {"all namespaces": here}
            spaces |= {
                title_of(each): each.counters for each in namespaces_of(stats.namespaces, namespace)
            }
        timed = here.timed_token_count
        deleted = stats.counters.asked_token_count - here.asked_token_count
        saved = here.matched_token_count + here.copied_token_count
        rows = {title: counted_savings(each, prefill_rate) for title, each in spaces.items()}
    if as_json:
        show_json([{"of": title} | each._asdict() for title, each in rows.items()])
        return
    show(store_tables.plain_table("savings", COLUMNS, (_cells(*each) for each in rows.items())))
    if prefill_rate:
        typer.echo(GIVEN.format(rate=prefill_rate))
    elif timed:
        typer.echo(REPORTED.format(timed=timed, saved=counted(saved, "saved token")))
    else:
        typer.echo(TOO_FEW if saved else NOT_KNOWN)
    if deleted > 0 and not namespace:
        typer.echo(DELETED.format(deleted=counted(deleted, "token")))


def counted_savings(counters: lease_pb2.CacheCounters, prefill_rate: float = 0.0) -> Savings:
    """Returns the savings by a store's counters.

    Seconds are at ``prefill_rate`` tokens a second. Without a rate they are at the speeds that
    engines reported, of those engines' tokens only; None if no engine reported one.
    """
    asked = counters.asked_token_count
    reused = counters.matched_token_count + counters.copied_token_count
    saved = savings_of(asked, asked - reused, prefill_rate)
    if prefill_rate or not counters.timed_token_count:
        return saved
    return saved._replace(seconds_saved=counters.saved_prefill_us * MICROSECOND)


# Seconds.
MICROSECOND = 1e-6
COLUMNS = ("of", "tokens asked", "computed", "saved", "share", "speed-up", "seconds saved")


def _cells(title: str, saved: Savings) -> tuple[Any, ...]:
    bound = saved.speed_up_bound
    return (
        title,
        saved.tokens_without,
        saved.tokens_with,
        saved.tokens_saved,
        f"{saved.share_saved:.1%}",
        "unbounded" if bound is None else f"at most {bound:.2f} times",
        "" if saved.seconds_saved is None else f"{saved.seconds_saved:.1f}",
    )
