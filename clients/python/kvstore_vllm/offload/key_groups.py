"""vLLM's KV cache groups as the store's: one is the path of a sequence, the others hang off it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from kvstore_client import GroupWindow


class EngineGroup(NamedTuple):
    """A group as vLLM has it: its number, the tokens of one of its keys, and its window in keys.

    ``window`` is None for full attention, and 1 for recurrent state (``is_state``). ``drafts``
    is True for the layers of a draft model, whose last key vLLM leaves out.
    """

    number: int
    key_tokens: int
    window: int | None
    is_state: bool = False
    drafts: bool = False


class KeyGroups(NamedTuple):
    """The path's tokens per page, and the store's number and window of each group of vLLM's.

    A page of another group belongs to the page of the path that ends where it ends.
    """

    page_tokens: int
    numbers: Mapping[int, int]
    """vLLM's number of a group -> the store's; 0 is the path."""

    windows: tuple[GroupWindow, ...]

    @classmethod
    def of(cls, groups: Sequence[EngineGroup]) -> Self:
        """Chooses the path: full attention if there is any.

        Raises ``ValueError``, with the reason, for an engine whose groups have no path, and for
        one whose groups end at different tokens.
        """
        paths = [each for each in groups if each.window is None]
        paths += [each for each in groups if not each.is_state and each.window is not None]
        if not paths:
            raise ValueError(
                "this model has recurrent state alone (Mamba), which depends on no earlier page: "
                "kvstore serves models with at least one layer of attention"
            )
        path = paths[0]
        others = [each for each in groups if each is not path]
        # vLLM looks one key further for a draft model, and leaves that one out again.
        more = int(any(each.drafts for each in groups))
        windows = []
        for number, each in enumerate(others, 1):
            if each.key_tokens % path.key_tokens:
                raise ValueError(
                    f"group {each.number} has {each.key_tokens} tokens a block, which is no "
                    f"multiple of the {path.key_tokens} of the attention layers: set one "
                    "--block-size for both"
                )
            if each.key_tokens != path.key_tokens and not each.is_state:
                raise ValueError(
                    f"group {each.number} has {each.key_tokens} tokens a block, and the attention "
                    f"layers of group {path.number} {path.key_tokens}: set one --block-size"
                )
            windows.append(GroupWindow(number, 0 if each.window is None else each.window + more))
        numbers = {path.number: 0} | {each.number: n for n, each in enumerate(others, 1)}
        return cls(path.key_tokens, numbers, tuple(windows))
