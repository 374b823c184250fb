"""Extents are added, shared by several users, and removed."""

import pytest
import torch

from inference_worker.errors import LayoutMismatchError, UnknownExtentError
from inference_worker.pages.extents import PoolExtents
from inference_worker.pages.layout import PageLayout

LAYOUT = PageLayout(1, 1, 4, "float32", 4)


def memory() -> torch.Tensor:
    """Returns the memory of an extent."""
    return torch.zeros(2, *LAYOUT.page_shape)


def test_an_extent_stays_until_all_have_left_it() -> None:
    """An extent is removed by its last user, and is unknown afterwards."""
    extents, pages = PoolExtents(LAYOUT, torch.device("cpu")), memory()
    extents.use(3, pages)
    extents.use(3, pages)
    extents.leave(3)
    assert (extents.keys, extents.removed_count) == ({3}, 0)
    assert extents.pages(3) is pages
    extents.leave(3)
    assert (extents.keys, extents.removed_count) == (frozenset(), 1)
    with pytest.raises(UnknownExtentError):
        extents.pages(3)


def test_an_extent_in_use_is_at_one_place() -> None:
    """Another memory under a used key is refused, and the first one stays."""
    extents, pages = PoolExtents(LAYOUT, torch.device("cpu")), memory()
    extents.use(3, pages)
    with pytest.raises(LayoutMismatchError, match="another address"):
        extents.use(3, memory())
    assert extents.pages(3) is pages


def test_each_mapping_has_a_number_of_its_own() -> None:
    """A new extent under an old key gets another number, so that cached facts do not mix."""
    extents = PoolExtents(LAYOUT, torch.device("cpu"))
    extents.add(3, memory())
    first = extents.mapping(3)
    extents.add(4, memory())
    extents.remove(3)
    assert extents.mapping(3) is None
    extents.add(3, memory())
    assert len({first, extents.mapping(3), extents.mapping(4)}) == 3
