"""The path among an engine's groups, and the windows of the others."""

import pytest

from kvstore_client import GroupWindow
from kvstore_vllm.offload.key_groups import EngineGroup, KeyGroups

FULL = EngineGroup(0, 16, None)


def test_one_group_is_the_path() -> None:
    """A dense model has no windows."""
    assert KeyGroups.of([FULL]) == KeyGroups(16, {0: 0}, ())


def test_the_first_group_of_full_attention_is_the_path() -> None:
    """The others hang off it with their windows; a second one of full attention needs all."""
    groups = [EngineGroup(0, 16, 4), EngineGroup(1, 16, None), EngineGroup(2, 16, None)]
    found = KeyGroups.of(groups)
    assert found.numbers == {1: 0, 0: 1, 2: 2}
    assert found.windows == (GroupWindow(1, 4), GroupWindow(2, 0))


def test_a_state_may_span_several_pages() -> None:
    """Recurrent state needs one page, which may be of a multiple of the path's tokens."""
    found = KeyGroups.of([FULL, EngineGroup(1, 64, 1, is_state=True)])
    assert found.windows == (GroupWindow(1, 1),)


def test_a_draft_model_makes_every_window_longer() -> None:
    """As vLLM does, a window is one key longer, which is left out again."""
    groups = [FULL, EngineGroup(1, 16, 4), EngineGroup(2, 16, None, drafts=True)]
    assert KeyGroups.of(groups).windows == (GroupWindow(1, 5), GroupWindow(2, 0))


def test_without_full_attention_a_sliding_window_is_the_path() -> None:
    """A model of sliding windows alone is served."""
    groups = [EngineGroup(0, 16, 1, is_state=True), EngineGroup(1, 16, 4)]
    assert KeyGroups.of(groups).numbers == {1: 0, 0: 1}


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([EngineGroup(0, 16, 1, is_state=True)], "Mamba"),
        ([FULL, EngineGroup(1, 24, 4)], "no multiple"),
        ([FULL, EngineGroup(1, 8, 4)], "no multiple"),
        ([FULL, EngineGroup(1, 32, 4)], "--block-size"),
    ],
)
def test_groups_that_do_not_end_together_are_refused(
    groups: list[EngineGroup], reason: str
) -> None:
    """The message says why, and what to set."""
    with pytest.raises(ValueError, match=reason):
        KeyGroups.of(groups)
