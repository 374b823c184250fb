"""kvstore-ctl savings: what sharing a prefix saves, worked out or counted."""

from typing import Annotated, Any

import typer

from kvstore.v1 import lease_pb2
from kvstore_client import tables
from kvstore_client.console import AsJson, RuntimeDirOption, connected, show, show_json
from kvstore_client.ctl_counts import counted
from kvstore_client.ctl_rates import counted_here
from kvstore_client.ctl_values import namespaces_of, title_of
from kvstore_client.savings import Savings, prefix_savings, savings_of

GIVEN = "Seconds are the saved tokens at {rate:g} tokens a second, as --prefill-rate says."
SAID = (
    "Seconds are of {timed} of the {saved}: those of engines that said what they"
    " compute in a second, each at its own speed. --prefill-rate counts all at one."
)
TOO_FEW = (
    "Seconds are not known: no engine that found these tokens had said what it computes in a"
    " second. kvstore-worker says it once it has computed enough tokens itself to measure it;"
    " --prefill-rate counts all at one speed."
)
DELETED = "Not in it: {deleted} asked of namespaces which are deleted."
NOT_KNOWN = "Seconds are not known: say what an engine computes in a second with --prefill-rate."


def savings(  # each is an option
    *,
    shared: Annotated[
        int | None, typer.Option(min=0, help="Tokens that all prompts begin with.")
    ] = None,
    suffix: Annotated[int, typer.Option(min=0, help="Tokens of each prompt after those.")] = 0,
    requests: Annotated[int, typer.Option(min=0, help="How many prompts.")] = 1,
    prefill_rate: Annotated[
        float, typer.Option(min=0, help="Prompt tokens that the engine computes in a second.")
    ] = 0.0,
    namespace: Annotated[
        str, typer.Option(help="Count only namespaces whose id or name begins like this.")
    ] = "",
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Say what a shared prefix saves; without --shared, what the running store has saved.

    The calculator asks no store: of the requests the first computes the shared tokens, the
    others find them. The running store's counters are of the namespaces that are there.
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
    show(tables.plain_table("savings", COLUMNS, (_cells(*each) for each in rows.items())))
    if prefill_rate:
        typer.echo(GIVEN.format(rate=prefill_rate))
    elif timed:
        typer.echo(SAID.format(timed=timed, saved=counted(saved, "saved token")))
    else:
        typer.echo(TOO_FEW if saved else NOT_KNOWN)
    if deleted > 0 and not namespace:
        typer.echo(DELETED.format(deleted=counted(deleted, "token")))


def counted_savings(counters: lease_pb2.CacheCounters, prefill_rate: float = 0.0) -> Savings:
    """Return what was saved by a store's counters.

    Seconds at a rate in tokens a second; without one at the speeds that engines said
    themselves, of their own tokens alone; None where none did.
    """
    asked = counters.asked_token_count
    reused = counters.matched_token_count + counters.copied_token_count
    saved = savings_of(asked, asked - reused, prefill_rate)
    if prefill_rate or not counters.timed_token_count:
        return saved
    return saved._replace(seconds_saved=counters.saved_prefill_us * MICROSECOND)


# Seconds.
MICROSECOND = 1e-6
COLUMNS = ("of", "tokens asked", "computed", "saved", "share", "prefill sooner", "seconds saved")


def _cells(title: str, saved: Savings) -> tuple[Any, ...]:
    bound = saved.speed_up_bound
    return (
        title,
        saved.tokens_without,
        saved.tokens_with,
        saved.tokens_saved,
        f"{saved.share_saved:.1%}",
        "no bound" if bound is None else f"at most {bound:.2f} times",
        "" if saved.seconds_saved is None else f"{saved.seconds_saved:.1f}",
    )
