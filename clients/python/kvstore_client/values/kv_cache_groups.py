"""KV cache groups: the further pages that a hybrid model keeps for each position.

A model with several kinds of attention has several groups. All layers of a group need the
same pages. Group 0 is the path of a sequence, which the other calls speak of. Pages of
groups 1 and up belong to a position of that path.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvstore.v1 import prefix_cache_pb2
from kvstore_client.values.page_runs import Pages


class GroupWindow(NamedTuple):
    """The pages of a group that a match needs: the last ``page_count`` before its end.

    ``page_count`` is 1 for the state of a Mamba layer, and the window in whole pages, rounded
    up, for sliding-window attention. Zero means all pages.
    """

    group: int
    page_count: int = 0


class GroupPages(NamedTuple):
    """The pages of a group in a match, from page ``start_page`` of the sequence on."""

    start_page: int
    pages: Pages


class GroupInsert(NamedTuple):
    """Pages of a group to publish: positions in pages of the sequence, and the slots of each.

    ``slot_offsets`` are those of a :class:`~kvstore_client.pages.spare_slots.SpareSlots`.
    """

    group: int
    page_positions: Sequence[int]
    slot_offsets: Sequence[int]


def window_messages(windows: Iterable[GroupWindow]) -> list[prefix_cache_pb2.GroupWindow]:
    """Returns windows as messages; raises ``ValueError`` for values that no message can have."""
    return [prefix_cache_pb2.GroupWindow(group=w.group, page_count=w.page_count) for w in windows]


def pages_of_groups(match: prefix_cache_pb2.PrefixMatch) -> Mapping[int, GroupPages]:
    """Returns the pages of an answer's groups, by group."""
    return {each.group: GroupPages(each.start_page, Pages(each.runs)) for each in match.groups}
