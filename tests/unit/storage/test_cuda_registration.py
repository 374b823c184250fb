"""Registration of the host's memory: what is registered, in which pieces, until when."""

from collections.abc import Iterator
from contextlib import ExitStack
from mmap import PAGESIZE

import pytest
from copier_rig import COUNT, SLOT, Rig
from structlog.testing import capture_logs

from kvstore.storage import cuda_copier
from kvstore.storage.cuda_copier import PIECE_BYTES, pieces

GIB = 1 << 30


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Both extents, for one test."""
    with ExitStack() as stack:
        yield Rig(stack)


def test_memory_is_registered_until_it_goes(rig: Rig) -> None:
    """Each extent of tier 2 for itself, and no longer than it is there."""
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    extent_id = rig.lower.allocate(1, SLOT).shape.extent_id
    assert list(rig.card.registered.values()) == [COUNT * SLOT] * 2
    rig.lower.destroy(extent_id)
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    rig.lower.close()
    assert rig.card.registered == {}


def test_large_memory_is_registered_in_pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece after piece, all of it; and where one is refused none of them stays."""
    monkeypatch.setattr(cuda_copier, "PIECE_BYTES", 2 * PAGESIZE)
    memory = memoryview(bytearray(5 * PAGESIZE))
    before = dict(rig.card.registered)
    unregister = rig.device.copier.register(memory, PAGESIZE // 2)
    added = {each: size for each, size in rig.card.registered.items() if each not in before}
    assert list(added.values()) == [2 * PAGESIZE, 2 * PAGESIZE, PAGESIZE]
    assert sorted(added) == [min(added) + n * 2 * PAGESIZE for n in range(3)]
    unregister()
    assert rig.card.registered == before
    rig.card.register(max(added), 1)
    with capture_logs() as lines:
        rig.device.copier.register(memory, PAGESIZE // 2)()
    assert [line["event"] for line in lines].count("host_memory_not_registered") == 1
    assert rig.card.registered == {**before, max(added): 1}


def test_what_is_not_registered_is_copied_all_the_same(rig: Rig) -> None:
    """It is said once, and nothing is given back that was not had."""
    rig.card.fail = "register"
    with capture_logs() as lines:
        extent = rig.lower.allocate(1, SLOT)
    told = [line for line in lines if line["event"] == "host_memory_not_registered"]
    assert [line["size_bytes"] for line in told] == [COUNT * SLOT]
    slot = extent.shape.extent_id << 32
    contents = rig.fill(rig.first)
    assert rig.tiers.begin_all([(rig.first, slot)])() == [None]
    assert bytes(rig.tiers.read(slot) or b"") == contents[0]
    rig.lower.destroy(extent.shape.extent_id)
    assert "unregister" not in rig.card.calls


def test_a_registration_that_cuda_keeps_is_logged(rig: Rig) -> None:
    """The memory goes all the same."""
    rig.card.fail = "unregister"
    with capture_logs() as lines:
        rig.lower.close()
    assert [line["event"] for line in lines].count("host_memory_still_registered") == 1


@pytest.mark.parametrize(
    ("size", "slot", "wanted"),
    [
        (GIB, 1000, [GIB]),
        (PIECE_BYTES, 3, [PIECE_BYTES]),
        (150 * GIB, 2 << 20, [64 * GIB, 64 * GIB, 22 * GIB]),
        (66 * 3 * GIB // 3, 3 << 20, [65_535 // 3 * 3 << 20, (66 << 10) - 65_535 << 20]),
        # Slots that end with a page of the kernel's only after more than a piece.
        (128 * ((16 << 20) + 1) * 64, (16 << 20) + 1, [128 * ((16 << 20) + 1) * 64]),
    ],
)
def test_pieces_end_between_slots_and_pages(size: int, slot: int, wanted: list[int]) -> None:
    """So that no copy is of two registrations, which CUDA refuses."""
    found = pieces(size, slot)
    assert found == wanted
    assert sum(found) == size
    assert all(each % slot == each % PAGESIZE == 0 for each in found[:-1])
