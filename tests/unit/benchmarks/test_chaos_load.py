"""The requests of the light workers of a chaos run."""

import gzip
import random
from pathlib import Path

import pytest

from chaos.load import LONE_HOST, WINDOW, Load, read_trace, synthetic, tokens_of

LONGEST = LONE_HOST.longest
TRACE = Path(__file__).parents[2] / "support" / "traces" / "conversation_cut.jsonl"


def test_a_trace_is_read_plain_and_gzipped(tmp_path: Path) -> None:
    """A request's chunks are its hash ids, cut to a maximum."""
    zipped = tmp_path / "trace.jsonl.gz"
    zipped.write_bytes(gzip.compress(TRACE.read_bytes()))
    requests = read_trace(TRACE, 1_000, LONGEST)
    assert requests == read_trace(zipped, 1_000, LONGEST)
    assert len(requests) == 240
    assert requests[0] == tuple(range(14))
    assert max(map(len, requests)) == LONGEST


def test_a_line_of_another_format_is_refused(tmp_path: Path) -> None:
    """A file that is no trace ends the run before it begins."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    with pytest.raises(ValueError, match="hash_ids"):
        read_trace(path, 1, LONGEST)


def test_requests_that_begin_alike_have_tokens_that_do() -> None:
    """Tokens follow from the chunks alone."""
    first, second = tokens_of([1, 2, 3]), tokens_of([1, 2, 4])
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]


def test_synthetic_requests_share_prefixes() -> None:
    """Most requests begin with chunks of an earlier request."""
    requests = synthetic(1, 200, LONE_HOST)
    assert requests == synthetic(1, 200, LONE_HOST)
    seen: set[int] = set()
    known = 0
    for chunks in requests:
        assert 0 < len(chunks) <= LONGEST
        known += chunks[0] in seen
        seen.update(chunks)
    assert known > 150


def test_a_draw_is_of_the_window() -> None:
    """A draw returns only requests of the window, cut or with some more tokens."""
    requests = [(number,) for number in range(4 * WINDOW)]
    load, chosen = Load(requests), random.Random(3)
    allowed = {tokens_of(chunks): number for number, chunks in enumerate(requests)}
    drawn = {allowed[load.draw(chosen, WINDOW)[:16]] for _ in range(500)}
    assert drawn <= set(range(WINDOW, 2 * WINDOW))
    assert len(drawn) > WINDOW // 2


def test_a_load_needs_requests() -> None:
    """An empty trace is an error."""
    with pytest.raises(ValueError, match="at least one"):
        Load([])
