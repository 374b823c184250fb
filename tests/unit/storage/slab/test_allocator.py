"""Room for what is to be written: other pages go, other sizes give, or the write is refused."""

from pathlib import Path

from kvstore.storage.slab.policy import WINDOW, SlabClock
from slab.rig import LIMIT, PAGE_BYTES, SlabRig, config, key


def test_a_full_slab_without_a_policy_refuses(rig: SlabRig) -> None:
    """A write without a slot is refused if the owner decides about evictions."""
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert not rig.write(slots)
    assert rig.remove(slots - 1)
    assert rig.write(slots)
    assert rig.found(*range(slots + 1)) == [*range(slots - 1), slots]


def test_a_full_slab_with_a_policy_evicts_leaves(tmp_path: Path) -> None:
    """The built-in policy evicts pages; every page that is left has its parent."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    chains = [range(start, start + 10) for start in range(0, 2 * slots, 10)]
    for chain in chains:
        assert rig.write(*chain)
    left = set(rig.found(*(number for chain in chains for number in chain)))
    assert left >= {*chains[-1]}
    assert {key(number) for chain in chains for number in chain if number not in left} == {
        *rig.lost
    }
    for chain in chains:
        kept = [number for number in chain if number in left]
        assert kept == list(chain)[: len(kept)]
    rig.reopen()
    assert rig.slab.use().counters.orphaned_pages == 0
    assert rig.slab.use().page_count == len(left)
    rig.slab.close()


def test_no_page_makes_room_for_its_own_child(tmp_path: Path) -> None:
    """The parent of a page under way is not evicted for it, though it is next in turn."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    for begun in [rig.begin(number) for number in range(slots)]:
        assert begun is not None
        assert begun.result(LIMIT)
    begun = rig.begin(slots, WINDOW - 1)
    assert begun is not None
    assert begun.result(LIMIT)
    assert key(WINDOW - 2) in rig.lost
    assert rig.found(WINDOW - 1, slots) == [WINDOW - 1, slots]
    rig.slab.close()


def test_a_size_that_comes_later_has_its_share(tmp_path: Path) -> None:
    """If all segments are taken, one changes over to pages of another size."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert rig.write(*range(slots, slots + 5), size=4096)
    assert rig.found(*range(slots, slots + 5), size=4096) == list(range(slots, slots + 5))
    left = rig.found(*range(slots))
    # The first segment went, and with it all that came after its pages.
    assert left == []
    assert len(rig.lost) == slots
    rig.reopen()
    assert rig.slab.use().page_count == 5
    rig.slab.close()


def test_an_empty_segment_serves_another_size(rig: SlabRig) -> None:
    """Without a policy too a segment without pages is cut anew."""
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert not rig.write(1000, size=4096)
    assert rig.remove(*range(slots))
    assert rig.write(1000, size=4096)
    assert rig.found(1000, size=4096) == [1000]


def test_a_page_that_fits_no_segment_is_refused(rig: SlabRig) -> None:
    """A page larger than a segment, and an empty one, are not taken."""
    assert rig.begin(1, size=1 << 20) is None
    assert rig.begin(1, size=0) is None
