"""kvstore-ctl savings: what sharing a prefix saves, worked out or counted."""

from typing import Annotated, Any

import typer

from kvstore_client import tables
from kvstore_client.console import AsJson, RuntimeDirOption, connected, show, show_json
from kvstore_client.ctl_values import namespaces_of, title_of
from kvstore_client.savings import Savings, prefix_savings, savings_of

BASIS = (
    "Seconds are tokens over a speed: {rate:g} tokens a second, as --prefill-rate says."
    " A worker of kvstore logs what it measures of itself; the store keeps no speed."
)
NO_BASIS = (
    "Seconds of prefill are not said, for the store keeps no speed of its workers:"
    " give what an engine computes with --prefill-rate."
)


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
    others find them. The counters are of all matches since the store's start.
    """
    if shared is not None:
        rows = {"calculated": prefix_savings(shared, suffix, requests, prefill_rate)}
    else:
        with connected(runtime_dir) as admin:
            stats = admin.stats()
            counted = {} if namespace else {"all namespaces": stats.counters}
            counted |= {
                title_of(each): each.counters for each in namespaces_of(stats.namespaces, namespace)
            }
        rows = {
            title: savings_of(
                each.asked_token_count,
                each.asked_token_count - each.matched_token_count - each.copied_token_count,
                prefill_rate,
            )
            for title, each in counted.items()
        }
    if as_json:
        show_json([{"of": title} | each._asdict() for title, each in rows.items()])
        return
    show(tables.plain_table("savings", COLUMNS, (_cells(*each) for each in rows.items())))
    typer.echo(BASIS.format(rate=prefill_rate) if prefill_rate else NO_BASIS)


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
