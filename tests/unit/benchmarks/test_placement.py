"""Places of a trace's pages on nodes, beside counting them one by one."""

import json
from collections import Counter

import pytest
from placement import CUT, PLACEMENTS, app, equal, growing
from typer.testing import CliRunner

from support.replay import placement as module
from support.replay.placement import Placement, TracePages
from support.replay.trace import Request

BLOCK = 4
PAGE_TOKENS = 512 // BLOCK


def chain(*ids: int) -> Request:
    """Returns a request of whole blocks."""
    return Request(0.0, ids, 512 * len(ids))


REQUESTS = [chain(0, 1, 2), chain(0, 3), chain(0, 1, 2, 4), chain(0, 1, 5), chain(0, 3, 6)]


def counted(placement: Placement, nodes: int, node_of: dict[int, int]) -> tuple[float, ...]:
    """Returns the figures by looking at one page after another."""
    stored: dict[int, int] = {}
    reads, left, hits = Counter[int](), 0, 0
    for request in REQUESTS:
        pages = [
            (block * BLOCK + at, place)
            for place, block in enumerate(request.ids)
            for at in range(BLOCK)
        ]
        places = []
        for number in range(len(pages)):
            start = placement.start(number)
            places.append(node_of[request.ids[start // BLOCK] * BLOCK + start % BLOCK])
        hit = (
            [page in stored for page, _ in pages].index(False)
            if request.ids[-1] * BLOCK not in stored
            else len(pages)
        )
        stored |= {page: place for (page, _), place in zip(pages, places, strict=True)}
        reads.update(places[:hit])
        hits += hit
        for dead in range(nodes):
            left += [*places[:hit], dead].index(dead)
    counts = Counter(stored.values())
    return (
        max(counts.values()) * nodes / len(stored),
        max(reads.values()) * nodes / hits,
        left / (hits * nodes),
    )


@pytest.mark.parametrize(
    "placement",
    [equal(1), equal(2), equal(8), growing(2, 8), Placement("first", lambda _: 0, 1 << 30)],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("nodes", [2, 3])
def test_the_figures_are_those_of_single_pages(placement: Placement, nodes: int) -> None:
    """Load and hits are what counting page by page gives."""
    pages = TracePages(REQUESTS, PAGE_TOKENS, placement)
    segments = {int(each) for each in pages._segment}
    for seed in range(5):
        drawn = module._mixed(pages._segment, seed) % module.SLOTS * nodes // module.SLOTS
        node_of = dict(zip(map(int, pages._segment), map(int, drawn), strict=True))
        assert set(node_of) == segments
        assert pages.placed(nodes, seed) == pytest.approx(counted(placement, nodes, node_of))


def test_even_shards_load_the_nodes_alike() -> None:
    """Many segments on shards in equal parts of the slots leave no node much fuller."""
    requests = [chain(*range(100 * k, 100 * k + 40)) for k in range(300)] * 2
    drawn, even = (
        TracePages(requests, 512, growing(1, 4, 64, is_even=is_even)) for is_even in (False, True)
    )
    assert even.placed(8, 0).stored < 1.2 < drawn.placed(8, 0).stored


def test_the_command_prints_every_rule() -> None:
    """The last line has a row for each rule and number of nodes."""
    outcome = CliRunner().invoke(app, ["--trace", str(CUT), "--draws", "1", "--requests", "40"])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(outcome.output.splitlines()[-1])["rows"]
    assert [each["segments"] for each in rows[::2]] == [each.name for each in PLACEMENTS]
    assert {each["nodes"] for each in rows} == {8, 32}
    for row in rows:
        assert 1 <= row["stored"] <= row["nodes"]
        assert 1 <= row["read"] <= row["nodes"]
        assert 0 <= row["hits_left"] < 1
    for wrong in (["--page-tokens", "100"], ["--requests", "1"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
