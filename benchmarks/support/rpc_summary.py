"""What whole hits cost beside each other, in a few ratios: the median of the rounds' own."""

from statistics import median
from typing import Any

# By the name that a figure has for them, the cells of a run.
LANE, GRPC = "kvstore, hot lane", "kvstore, gRPC"
PEERS = {"lmcache_zmq": "LMCache, ZMQ, 256", "lmcache_grpc": "LMCache, gRPC, 256"}
# Acquire and release by themselves; the same by way of the client; a match instead.
WAYS = {"": ", calls alone", "client_": ", acquire", "match_": ""}
SIZES = {2_048: "2048", 100_000: "100k"}


def summary(hits: dict[str, Any]) -> dict[str, float]:
    """Return ratios of whole hits, each of times of one to those of the other.

    ``hits`` is what a run of fetch.py's first part came to. A peer that was left out has
    none. ``calls_alone`` of it are acquire and release; ``client_`` the same by way of
    the client, which releases in the background and is waited for here.
    """
    raw = {(cell["name"], cell["tokens"]): cell["raw_us"] for cell in hits["cells"]}
    found: dict[str, float] = {}
    for tokens, size in SIZES.items():
        for way, suffix in WAYS.items():
            lane = raw[LANE + suffix, tokens]
            found[f"{way}lane_over_grpc_{size}"] = _ratio(lane, raw[GRPC + suffix, tokens])
            for peer, name in PEERS.items():
                if (name, tokens) in raw:
                    found[f"{peer}_over_{way}lane_{size}"] = _ratio(raw[name, tokens], lane)
    return found


def _ratio(upper: list[list[int]], lower: list[list[int]]) -> float:
    pairs = zip(upper, lower, strict=True)
    return round(median(median(above) / median(below) for above, below in pairs), 3)
