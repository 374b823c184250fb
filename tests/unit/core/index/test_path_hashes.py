"""The names of a path's pages: their digests, and those of their segments' first pages."""

import pytest

from core.core_builders import CoreWorld, node_at, paged
from core.disk_world import DiskWorld
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import hashes_to
from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.page_hash import page_digest, page_digests
from kvstore.core.values.segments import segment_start

# More pages than two segments have.
LETTERS = "".join(map(chr, range(100, 170)))


@pytest.mark.parametrize("known", [0, 1, 31, 32, 33, 64, 70])
def test_a_name_has_its_segment_whatever_digests_are_known(known: int) -> None:
    """They are computed, or found in the nodes above, also beyond the end of the path."""
    world = DiskWorld(slots=80)
    for number, count in enumerate((20, len(LETTERS)), start=1):
        world.worker.reserve(number, count)
        world.worker.insert(number, LETTERS[:count])
        world.worker.abort(number)
    if known:
        world.write_touched(known)
        world.write_touched(max(known - 20, 1))
    digests = list(page_digests(world.namespace.digest, paged(LETTERS + "ab"), 8))
    node = node_at(world.namespace.index, LETTERS)
    at = Position(node, len(LETTERS) - node.start)
    hashes = hashes_to(at, paged("ab"))
    assert hashes.start >= min(known, 20)
    for end in range(max(hashes.start, 1), len(digests) + 1):
        first = digests[segment_start(end - 1)]
        assert hashes.name(end) == (digests[end - 1], first)


def test_a_page_of_a_group_is_in_the_segment_of_its_page_of_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in that of the next page, beside which it lies in the tree."""
    monkeypatch.setattr(
        "kvstore.core.index.path_hashes.segment_start", lambda page: page - page % 2
    )
    world = CoreWorld(slots=12, page_stores=1)
    world.worker.publish_groups("abc", g1="010")
    width = world.namespace.index.width
    a, b, c = page_digests(world.namespace.digest, paged("abc"), width)
    names = [
        write.digests.name(page.end)
        for write in world.cache.plan_writes(100)
        for page in write.pages
    ]
    of_group = page_digest(b, group_marker(1, width))
    assert {each.digest: each.segment for each in names} == {a: a, b: a, c: c, of_group: a}
