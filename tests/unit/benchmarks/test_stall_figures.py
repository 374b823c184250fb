"""The cost of a stall, from given requests and health probes."""

import pytest

from support.stall.figures import Request, Stall, cost_of, health_of_stall, hits_after
from support.stall.probe import Look

STALL = Stall(100.0, 130.0)


def request(begin: float, end: float, *, worker: str = "a", **more: float | bool) -> Request:
    """Returns a request that used the store and missed, by default."""
    fields: dict[str, float | bool] = {
        "use_store": True,
        "hit": False,
        "wrong": False,
        "store_s": 0.0,
        **more,
    }
    return Request("light", worker, begin, end, **fields)  # type: ignore[arg-type]


def test_what_is_added_is_over_requests_without_the_store_at_the_same_time() -> None:
    """The baseline is the median of requests without the store within the stall."""
    requests = [
        request(90.0, 99.0, store_s=0.5),
        request(50.0, 59.0, use_store=False),
        *(request(101.0, 101.0 + each, use_store=False) for each in (0.25, 0.5, 9.0)),
        request(99.5, 101.0, store_s=1.0),
        request(110.0, 110.5),
        request(129.5, 131.0),
    ]
    cost = cost_of("light", requests, STALL, call_timeout=1.0)
    assert (cost["requests"], cost["waited"]) == (3, 1)
    assert (cost["largest_added_s"], cost["median_added_s"]) == (1.0, 1.0)
    assert (cost["largest_store_s"], cost["median_store_s"]) == (1.0, 0.0)
    assert cost["without_store"] == {
        "requests": 3,
        "median_s": 0.5,
        "largest_over_median_s": 8.5,
    }


def test_a_short_stall_is_compared_with_the_whole_run() -> None:
    """The whole run is the baseline if no request without the store fell into the stall."""
    requests = [request(50.0, 50.25, use_store=False), request(100.0, 101.0)]
    cost = cost_of("light", requests, STALL, call_timeout=1.0)
    assert cost["largest_added_s"] == 0.75


def test_without_requests_there_is_no_figure() -> None:
    """A stall without requests is an error, and not a cost of 0."""
    with pytest.raises(ValueError, match="light"):
        cost_of("light", [request(1.0, 2.0)], STALL, call_timeout=1.0)


def test_each_worker_s_first_hit_counts() -> None:
    """A worker's first hit that ended after the stall counts, and no other."""
    requests = [
        request(99.0, 99.5, hit=True),
        request(130.0, 130.25),
        request(131.0, 132.0, hit=True),
        request(132.0, 133.0, hit=True),
        request(129.0, 130.5, worker="b", hit=True),
    ]
    assert hits_after(requests, STALL) == [0.5, 2.0]


def test_a_stall_is_seen_when_a_look_has_ended() -> None:
    """A probe that ends without SERVING has seen the stall, and a later one sees its end."""
    looks = [
        Look(98.0, 98.1, "SERVING"),
        Look(99.9, 101.9, "DEADLINE_EXCEEDED"),
        Look(129.0, 130.5, "SERVING"),
        Look(130.6, 130.7, "NOT_SERVING"),
        Look(130.8, 131.0, "SERVING"),
    ]
    assert health_of_stall(looks, STALL) == {
        "not_serving_after_s": 1.9,
        "serving_after_s": 1.0,
        "said": ["DEADLINE_EXCEEDED", "NOT_SERVING", "SERVING"],
    }
    assert health_of_stall(looks[:1], STALL)["not_serving_after_s"] is None
