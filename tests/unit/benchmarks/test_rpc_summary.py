"""The summary of a run of rpc.py: a few ratios of whole hits."""

from typing import Any

import pytest

from support.rpc.summary import GRPC, LANE, PEERS, SIZES, WAYS, summary


def hits(peers: dict[str, int]) -> dict[str, Any]:
    """Returns a run of two rounds with 2 us for the lane, 8 for gRPC, and the given peers."""
    times = {LANE + suffix: 2 for suffix in WAYS.values()}
    times |= {GRPC + suffix: 8 for suffix in WAYS.values()}
    times |= {name + way: us for name, us in peers.items() for way in ("", ", in a row")}
    return {
        "cells": [
            {"name": name, "tokens": tokens, "raw_us": [[us, us, 10 * us], [us]]}
            for name, us in times.items()
            for tokens in SIZES
        ]
    }


def test_each_way_to_the_store_is_compared_with_its_own() -> None:
    """The lane is compared with gRPC, and each peer with the lane, for both prompts."""
    found = summary(hits({PEERS["lmcache_zmq"]: 20, PEERS["lmcache_grpc"]: 50}))
    assert found["lane_over_grpc_2048"] == found["client_lane_over_grpc_100k"] == 0.25
    assert found["lmcache_zmq_over_lane_100k"] == found["lmcache_zmq_over_match_lane_2048"] == 10
    assert found["lmcache_grpc_over_client_lane_2048"] == 25
    assert found["row_lane_over_grpc_2048"] == 0.25
    assert found["lmcache_zmq_over_row_lane_100k"] == 10
    assert found["lane_hits_per_second_2048"] == 500_000
    assert len(found) == len(SIZES) * (len(WAYS) * 3 + 1)


@pytest.mark.parametrize("peers", [{}, {PEERS["lmcache_grpc"]: 50}])
def test_a_peer_that_was_left_out_has_no_ratio(peers: dict[str, int]) -> None:
    """A peer that was left out has no ratio, and the others have theirs."""
    found = summary(hits(peers))
    assert not [name for name in found if name.startswith("lmcache_zmq")]
    assert ("lmcache_grpc_over_lane_2048" in found) == bool(peers)
    assert found["lane_over_grpc_100k"] == 0.25


def test_ratios_are_the_median_of_the_rounds_own() -> None:
    """A round under foreign load changes the ratios little."""
    run = hits({})
    for cell in run["cells"]:
        cell["raw_us"] += [[cell["raw_us"][0][0] * (9 if cell["name"].startswith(LANE) else 1)]]
    assert summary(run)["lane_over_grpc_2048"] == 0.25
