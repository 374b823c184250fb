"""Traces of prompts for a replay."""

import gzip
import json
from pathlib import Path

import pytest

from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_ctl.bench.prompt_trace import BLOCK_TOKENS, prompts_of

CUT = Path(__file__).parents[2] / "data" / "conversation_300.jsonl.gz"


def test_a_public_trace_is_read() -> None:
    """A trace's block becomes a page, and the last may be partial. Equal ids are equal pages."""
    prompts = list(prompts_of(CUT, 3))
    with gzip.open(CUT, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(3), strict=False)]
    for prompt, row in zip(prompts, rows, strict=True):
        assert prompt.page_count == len(row["hash_ids"])
        assert prompt.token_count == row["input_length"]
        assert prompt.tokens_of(1) == BLOCK_TOKENS
        assert prompt.tokens_of(prompt.page_count) == row["input_length"]
    assert prompts[0].packed[:64] == pack_tokens([rows[0]["hash_ids"][0]] * 16)


def test_tokens_are_replayed_as_they_are(tmp_path: Path) -> None:
    """Tokens are replayed in whole pages of 16, and empty lines are skipped."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"tokens": [' + ", ".join(map(str, range(37))) + "]}\n\n")
    (prompt,) = prompts_of(path)
    assert (prompt.page_count, prompt.token_count) == (2, 37)
    assert prompt.packed == pack_tokens(list(range(32)))
    assert [prompt.tokens_of(pages) for pages in (0, 1, 2)] == [0, 16, 32]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[" * 100_000,
        "[]",
        '{"hash_ids": [1]}',
        '{"tokens": 5}',
        '{"tokens": [-1]}',
        '{"tokens": ["a"]}',
    ],
    ids=range(7),
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    """The error has the file and the line's number."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"tokens": []}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"trace.jsonl, line 2: \S.*; a line is JSON with"):
        list(prompts_of(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names a missing file, and one that is not compressed as its name says."""
    with pytest.raises(ValueError, match=rf"^{tmp_path}/nothing.jsonl: No such file or directory$"):
        list(prompts_of(tmp_path / "nothing.jsonl"))
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"broken\.gz"):
        list(prompts_of(broken))
