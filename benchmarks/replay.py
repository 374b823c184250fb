"""A trace of requests through the core: the hit rate of a policy, beside the best possible.

Each request matches its blocks, inserts the rest and releases all, one after the other and without
sockets. With ``--hosts`` each host has a cache, and all of them may share a remote engine.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvstore.core.eviction.policies import POLICIES
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.tier_policy import TierPolicy
from support.machine import load_average
from support.replay.core import Replay, Replayed
from support.replay.exact import replay_exact
from support.replay.hosts import HostsReplay, HostsReplayed, RemoteWrite, Route
from support.replay.optimum import optimum
from support.replay.tiers import Beyond
from support.replay.trace import Drawn, Oracle, Request, load
from support.traces import readable

INDEXES: dict[str, IndexFactory] = {"radix": RadixIndex, "hash": HashIndex}
BACKENDS = (*INDEXES, "exact")
HINTS = "none, oracle, noisy:0.3, or noisy:0.3:run, :request, :block"
# The part of a public trace that is in this repository, and its number of requests.
CUT = Path(__file__).parents[1] / "tests" / "data" / "conversation_300.jsonl.gz"
QUICK = 300

app = typer.Typer()


def oracle_of(hints: str, asked: list[Request]) -> Oracle | None:
    """Returns the source of the hints, or None."""
    if hints == "none":
        return None
    kind, _, rest = hints.partition(":")
    noise, _, drawn = rest.partition(":")
    try:
        if kind == "oracle" and not rest:
            return Oracle(asked, 0.0)
        if kind == "noisy" and 0 <= float(noise) <= 1:
            return Oracle(asked, float(noise), Drawn(drawn or "run"))
    except ValueError as error:
        raise typer.BadParameter(f"unknown hints {hints}: use {HINTS}") from error
    raise typer.BadParameter(f"unknown hints {hints}: use {HINTS}")


# The figures of the table, with those of tiers if there are some.
SHOWN = (
    *("hit_rate", "hit_rate_tier1", "hit_rate_tier2", "hit_rate_tier3", "hit_rate_local"),
    *("hit_rate_remote", "optimum"),
    *("demotions", "promotions", "loads", "evictions", "writes", "writes_tier2", "writes_tier3"),
    *("remote_writes", "remote_reads", "writes_per_read", "returned", "ops_per_s"),
)


def _by_tier(done: Replayed, tokens: int) -> dict[str, object]:
    """Returns the figures of the tiers of one host."""
    counters = done.counters
    return {
        **{f"hit_rate_tier{n}": round(done.by_tier[n] / tokens, 4) for n in (1, 2, 3)},
        "demotions": counters.demoted_page_count,
        "promotions": counters.promoted_page_count,
        "loads": counters.loaded_page_count,
        "writes_tier1": counters.inserted_page_count
        + counters.promoted_page_count
        + counters.loaded_page_count,
        "writes_tier2": counters.demoted_page_count,
        "writes_tier3": done.store_write_count,
    }


def _refuse(policy: str, backend: str, *, tiers: bool, many: bool, third: bool) -> None:
    """Raises ``typer.BadParameter`` for options that contradict each other."""
    if policy not in POLICIES:
        raise typer.BadParameter(f"unknown policy {policy}: use {', '.join(POLICIES)}")
    if backend not in BACKENDS:
        raise typer.BadParameter(f"unknown backend {backend}: use {', '.join(BACKENDS)}")
    if backend == "exact" and tiers:
        raise typer.BadParameter(
            "the backend exact has one tier: leave out --tier2 and --tier3",
            param_hint="--tier2, --tier3",
        )
    if many and (backend == "exact" or third):
        raise typer.BadParameter(
            "hosts have no tier 3 here and no backend exact: leave them out",
            param_hint="--hosts, --remote",
        )


@app.command()
def main(  # noqa: PLR0913 - each is an option
    trace: Annotated[Path, typer.Option(help="File of JSON lines, plain or .gz.")] = CUT,
    capacity: Annotated[
        int, typer.Option(min=1, help="Pages of tier 1. A block is a page.")
    ] = 1000,
    policy: Annotated[str, typer.Option(help=", ".join(POLICIES))] = "auto",
    backend: Annotated[str, typer.Option(help=", ".join(BACKENDS))] = "radix",
    hints: Annotated[str, typer.Option(help=HINTS)] = "none",
    page_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 512,
    tier2: Annotated[int, typer.Option(min=0, help="Pages of tier 2.")] = 0,
    tier3: Annotated[int, typer.Option(min=0, help="Pages of tier 3, without a file.")] = 0,
    requests: Annotated[int | None, typer.Option(min=1, help="Number of requests.")] = None,
    *,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts with a cache each.")] = 1,
    remote: Annotated[int, typer.Option(min=0, help="Pages of the engine of all hosts.")] = 0,
    remote_write: Annotated[
        RemoteWrite, typer.Option(help="The pages that hosts write to the engine.")
    ] = RemoteWrite.THROUGH,
    route: Annotated[Route, typer.Option(help="The host of each request.")] = Route.ROUND_ROBIN,
    promote: Annotated[
        bool, typer.Option("--promote", help="Promote pages on each match.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Replay at most 300 requests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one line of JSON.")] = False,
) -> None:
    """Replays a trace and prints its hit rate in tokens and the offline optimum."""
    many = hosts > 1 or remote > 0
    _refuse(policy, backend, tiers=tier2 + tier3 > 0, many=many, third=tier3 > 0)
    with readable():
        asked = load(trace, min(requests or QUICK, QUICK) if quick else requests)
    oracle = oracle_of(hints, asked)
    index = INDEXES.get(backend, RadixIndex)
    how = TierPolicy(promote=promote)
    begun = time.perf_counter()
    done: Replayed | HostsReplayed
    if many:
        shared = HostsReplay(
            hosts,
            capacity,
            POLICIES[policy],
            page_tokens,
            index,
            lower=tier2,
            tier_policy=how,
            remote=remote,
            write=remote_write,
            route=route,
        )
        done = shared.run(asked, oracle)
    elif backend == "exact":
        done = replay_exact(asked, capacity)
    else:
        beyond = Beyond(tier2, tier3, how)
        done = Replay(capacity, POLICIES[policy], page_tokens, index, beyond).run(asked, oracle)
    seconds = time.perf_counter() - begun
    tokens = sum(each.token_count for each in asked)
    result = {
        "hit_rate": round(done.hit_token_count / tokens, 4),
        "optimum": round(optimum(asked, hosts * (capacity + tier2) + tier3 + remote), 4),
        "evictions": done.counters.evicted_page_count,
        "writes": done.counters.inserted_page_count,
        "ops_per_s": round(done.operations / seconds),
        "returned": done.counters.returned_page_count,
        "seconds": round(seconds, 2),
        "requests": len(asked),
        "capacity": capacity,
        "policy": policy,
        "backend": backend,
        "hints": hints,
        "page_tokens": page_tokens,
        "load_average": load_average(),
    }
    if isinstance(done, HostsReplayed):
        result |= {
            "hit_rate_local": round((done.hit_token_count - done.remote_token_count) / tokens, 4),
            "hit_rate_remote": round(done.remote_token_count / tokens, 4),
            "remote_writes": done.remote_writes,
            "remote_reads": done.remote_reads,
            "writes_per_read": round(done.remote_writes / max(done.remote_reads, 1), 2),
            "hosts": hosts,
            "tier2": tier2,
            "remote": remote,
            "remote_write": remote_write.value,
            "route": route.value,
        }
    elif tier2 or tier3:
        result |= _by_tier(done, tokens) | {"tier2": tier2, "tier3": tier3, "promote": promote}
    if not as_json:
        for name in SHOWN:
            if name in result:
                print(f"{name:>14} {result[name]}")
    print(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    app()
