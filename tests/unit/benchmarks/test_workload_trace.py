"""A trace's blocks as tokens: shared prefixes, lengths and known tokens."""

from pathlib import Path

from inference_worker.demo.comparison import ComputedPrompts
from support.replay.trace import Request, load
from support.workloads.trace import block_ids, turns

CUT = Path(__file__).parents[2] / "data" / "conversation_300.jsonl.gz"


def test_a_blocks_tokens_are_its_own() -> None:
    """A block's tokens are equal at each call and for any number, and differ between blocks."""
    assert block_ids(7, 16) == block_ids(7, 16) == block_ids(7, 32)[:16]
    assert block_ids(7, 16) != block_ids(8, 16)
    assert {32 <= each <= 126 for each in block_ids(7, 500)} == {True}


def test_a_last_block_has_its_part() -> None:
    """A partial block gets the same share of tokens, at least one."""
    requests = [Request(0, (1, 2), 768), Request(1, (1, 3), 513), Request(2, (1, 4), 1024)]
    found = turns(requests, 16, 100)
    assert [len(each.ids) for each in found] == [24, 17, 32]
    assert [each.known_tokens for each in found] == [0, 16, 16]
    assert {tuple(each.ids[:16]) for each in found} == {tuple(block_ids(1, 16))}


def test_prompts_come_in_time_and_none_is_too_long() -> None:
    """Prompts that are too long are left out, and their blocks are not known to others."""
    requests = [Request(5, (1, 2), 1024), Request(3, (1,), 512), Request(1, (1, 2, 3), 1536)]
    found = turns(requests, 8, 16)
    assert [each.time for each in found] == [3, 5]
    assert [each.known_tokens for each in found] == [0, 8]


def test_what_is_known_of_the_cut_is_what_comparing_finds() -> None:
    """Known tokens by ids are the known tokens by comparing tokens one by one."""
    computed = ComputedPrompts()
    for each in turns(load(CUT, 40), 16, 1_000):
        # A block may by chance begin with its sibling's first tokens.
        assert each.known_tokens - 1 <= computed.shared(each.ids) <= each.known_tokens + 4
        computed.add(each.ids)
