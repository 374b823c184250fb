"""The costs of whole hits in a few ratios: the median of the rounds' own."""

from statistics import median
from typing import Any

# The cells of a run, by the name of their figure.
LANE, GRPC = "kvstore, hot lane", "kvstore, gRPC"
PEERS = {"lmcache_zmq": "LMCache, ZMQ, 256", "lmcache_grpc": "LMCache, gRPC, 256"}
# Acquire and release alone, the same through the client, and a match through the client.
WAYS = {
    "": ", calls alone",
    "row_": ", calls alone, in a row",
    "client_": ", acquire",
    "match_": "",
}
# The suffix of a peer's cell for the same way.
ROWS = {"row_": ", in a row"}
SIZES = {2_048: "2048", 100_000: "100k"}


def summary(hits: dict[str, Any]) -> dict[str, float]:
    """Returns ratios of whole hits, each of the times of one way to those of another.

    ``hits`` is the result of fetch.py's first part. A peer that was left out has no ratio. A ratio
    without a prefix is of acquire and release, each answered before the next call. ``row_`` is of
    consecutive hits, whose releases nobody waits for, on either side. ``client_`` is of hits
    through the client, all answered. ``match_`` is of a match through the client.
    ``lane_hits_per_second`` is of consecutive hits.
    """
    raw = {(cell["name"], cell["tokens"]): cell["raw_us"] for cell in hits["cells"]}
    found: dict[str, float] = {}
    for tokens, size in SIZES.items():
        for way, suffix in WAYS.items():
            lane = raw[LANE + suffix, tokens]
            found[f"{way}lane_over_grpc_{size}"] = _ratio(lane, raw[GRPC + suffix, tokens])
            for peer, name in PEERS.items():
                found_peer = raw.get((name + ROWS.get(way, ""), tokens))
                if found_peer is not None:
                    found[f"{peer}_over_{way}lane_{size}"] = _ratio(found_peer, lane)
        row = raw[LANE + WAYS["row_"], tokens]
        found[f"lane_hits_per_second_{size}"] = round(1e6 / median(map(median, row)))
    return found


def _ratio(upper: list[list[int]], lower: list[list[int]]) -> float:
    pairs = zip(upper, lower, strict=True)
    return round(median(median(above) / median(below) for above, below in pairs), 3)
