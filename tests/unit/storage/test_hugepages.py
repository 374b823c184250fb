"""The pool of large pages, and transparent ones, read from files of a machine."""

from pathlib import Path

import pytest

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.host.hugepages import (
    HUGEPAGE_BYTES,
    POOL,
    SHMEM_ENABLED,
    available_bytes,
    needed_pages,
    require,
    transparent_allowed,
)


def pool(root: Path, **counts: int) -> Path:
    """Writes the pool's files, and returns the root."""
    (root / POOL).mkdir(parents=True)
    for name, count in counts.items():
        (root / POOL / f"{name}_hugepages").write_text(f"{count}\n", encoding="ascii")
    return root


def test_what_is_free_and_set_aside_for_nobody_is_available(tmp_path: Path) -> None:
    """Pages that a mapping set aside are free until they are touched, but not available."""
    root = pool(tmp_path, nr=10, free=6, resv=2, surplus=0, nr_overcommit=0)
    assert available_bytes(root) == 4 * HUGEPAGE_BYTES
    require(4 * HUGEPAGE_BYTES, root)


def test_pages_beyond_the_pool_count_as_far_as_they_are_allowed(tmp_path: Path) -> None:
    """With vm.nr_overcommit_hugepages the kernel makes more pages when they are needed."""
    root = pool(tmp_path, nr=3, free=0, resv=0, surplus=3, nr_overcommit=5)
    assert available_bytes(root) == 2 * HUGEPAGE_BYTES


def test_a_pool_that_has_less_says_what_to_set(tmp_path: Path) -> None:
    """The error names the total number to set, and both sizes."""
    root = pool(tmp_path, nr=10, free=6, resv=2)
    size = 5 * HUGEPAGE_BYTES + 1
    with pytest.raises(NotEnoughMemory, match="at least 12:") as refused:
        require(size, root)
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (
        size,
        4 * HUGEPAGE_BYTES,
    )
    assert needed_pages(size, root) == 12


def test_a_kernel_without_a_pool_has_none(tmp_path: Path) -> None:
    """The files do not exist."""
    assert available_bytes(tmp_path) == 0
    assert needed_pages(HUGEPAGE_BYTES, tmp_path) == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("always within_size [advise] never deny force\n", True),
        ("always [within_size] advise never deny force\n", True),
        ("always within_size advise [never] deny force\n", False),
        ("always within_size advise never [deny] force\n", False),
    ],
)
def test_transparent_pages_are_allowed_where_asking_has_an_effect(
    tmp_path: Path, *, text: str, wanted: bool
) -> None:
    """The word in brackets is in force; without the file there are none."""
    assert not transparent_allowed(tmp_path)
    path = tmp_path / SHMEM_ENABLED
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="ascii")
    assert transparent_allowed(tmp_path) == wanted
