"""The slab's file: made once, kept, and never made out of something else."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.storage.errors import SlabInUse, SlabUnusable
from kvstore.storage.slab.file import MAX_VIEWS, SlabFile, aligned
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.superblock import Superblock
from wire.own_logs import own_logs

SEGMENT = 64 << 10


def opened(path: Path, segments: float = 2) -> SlabFile:
    """Opens a slab of so many segments."""
    return SlabFile.open(
        path, size_bytes=ALIGNMENT + int(segments * SEGMENT), segment_bytes=SEGMENT
    )


def test_a_file_is_made_whole_and_its_own(tmp_path: Path) -> None:
    """It is preallocated, readable by its owner alone, and named at random."""
    first, second = opened(tmp_path / "a"), opened(tmp_path / "b")
    stat = (tmp_path / "a").stat()
    assert stat.st_size == ALIGNMENT + 2 * SEGMENT
    assert stat.st_blocks * 512 >= stat.st_size
    assert stat.st_mode & 0o777 == 0o600
    assert first.superblock.slab != second.superblock.slab
    first.close()
    second.close()


def test_a_file_keeps_its_name_and_its_segments(tmp_path: Path) -> None:
    """Opened again, with another size of segments, it is what it was."""
    file = opened(tmp_path / "slab")
    before = file.superblock
    file.write(ALIGNMENT, [aligned(b"x" * ALIGNMENT)])
    file.close()
    again = SlabFile.open(
        tmp_path / "slab", size_bytes=ALIGNMENT + 2 * SEGMENT, segment_bytes=2 * SEGMENT
    )
    assert again.superblock == before
    read = aligned(bytes(ALIGNMENT))
    again.read(ALIGNMENT, [read])
    assert bytes(read) == b"x" * ALIGNMENT
    again.close()


@pytest.mark.parametrize(("segments", "count"), [(4, 4), (1, 1), (2.9, 2)])
def test_a_file_grows_and_shrinks(tmp_path: Path, segments: float, count: int) -> None:
    """Its size follows the setting, in whole segments."""
    opened(tmp_path / "slab").close()
    again = opened(tmp_path / "slab", segments)
    assert again.segment_count == count
    assert (tmp_path / "slab").stat().st_size == ALIGNMENT + count * SEGMENT
    again.close()


@pytest.mark.parametrize("content", [b"notes", b"\0" * 8192, os.urandom(8192)])
def test_another_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    """A file that is no slab is refused, and keeps its bytes."""
    (tmp_path / "slab").write_bytes(content)
    with pytest.raises(SlabUnusable, match="no slab"):
        opened(tmp_path / "slab")
    assert (tmp_path / "slab").read_bytes() == content


def test_a_file_that_was_half_made_is_made_anew(tmp_path: Path) -> None:
    """A crash before the file had its size leaves nothing that anybody needs."""
    half = Superblock(b"0123456789abcdef", 2 * SEGMENT, made=False)
    (tmp_path / "slab").write_bytes(half.encode() + b"rest" * 5000)
    file = opened(tmp_path / "slab")
    assert file.superblock.slab != half.slab
    assert file.superblock.segment_bytes == SEGMENT
    read = aligned(bytes(ALIGNMENT))
    file.read(ALIGNMENT, [read])
    assert not any(read)
    file.close()
    again = opened(tmp_path / "slab")
    assert again.superblock.slab == file.superblock.slab
    again.close()


def test_a_file_has_one_owner(tmp_path: Path) -> None:
    """A second opener is refused until the first closes."""
    file = opened(tmp_path / "slab")
    with pytest.raises(SlabInUse):
        opened(tmp_path / "slab")
    file.close()
    opened(tmp_path / "slab").close()


@pytest.mark.parametrize(
    ("size", "segment", "why"),
    [(SEGMENT, SEGMENT, "no segment"), (1 << 20, 5000, "multiple"), (1 << 20, 4096, "multiple")],
)
def test_sizes_that_cannot_be_are_named(tmp_path: Path, size: int, segment: int, why: str) -> None:
    """Too small a file, and segments that are not aligned or too small."""
    with pytest.raises(SlabUnusable, match=why):
        SlabFile.open(tmp_path / "slab", size_bytes=size, segment_bytes=segment)


def test_a_disk_without_the_room_is_left_as_it_was(tmp_path: Path) -> None:
    """A file that cannot fit is not begun, be it new or one that is to grow."""
    with pytest.raises(SlabUnusable, match="available on the disk"):
        opened(tmp_path / "new", 1 << 40)
    assert (tmp_path / "new").stat().st_size == ALIGNMENT
    opened(tmp_path / "slab").close()
    with pytest.raises(SlabUnusable, match="available"):
        opened(tmp_path / "slab", 1 << 40)
    again = opened(tmp_path / "slab")
    assert again.segment_count == 2
    again.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The file is made, its folder is not: the message says so, and nothing is made."""
    folder = tmp_path / "none"
    why = f"^{folder}/slab: the folder {folder} is not there: make it"
    with pytest.raises(SlabUnusable, match=why):
        opened(folder / "slab")
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_is_in_its_words(tmp_path: Path) -> None:
    """A link to a folder that is not there is not taken for the path's own folder."""
    (tmp_path / "slab").symlink_to(tmp_path / "none" / "slab")
    with pytest.raises(SlabUnusable, match=r"/slab: No such file or directory$"):
        opened(tmp_path / "slab")


def test_more_views_than_one_call_takes_are_moved(tmp_path: Path) -> None:
    """Thousands of pieces go in several calls, and come back."""
    count = MAX_VIEWS + 10
    file = SlabFile.open(
        tmp_path / "slab", size_bytes=ALIGNMENT * (count + 2), segment_bytes=ALIGNMENT * (count + 1)
    )
    whole = aligned(b"".join(number.to_bytes(4, "little") * 1024 for number in range(count)))
    into = aligned(bytes(len(whole)))
    pieces = range(0, len(whole), ALIGNMENT)
    file.write(ALIGNMENT, [whole[at : at + ALIGNMENT] for at in pieces])
    file.read(ALIGNMENT, [into[at : at + ALIGNMENT] for at in pieces])
    file.sync()
    assert into == whole
    file.close()


def test_a_file_that_ends_is_an_error(tmp_path: Path) -> None:
    """A file that somebody truncated is read as far as it goes, and no farther."""
    file = opened(tmp_path / "slab")
    os.truncate(tmp_path / "slab", ALIGNMENT + SEGMENT)
    with pytest.raises(OSError, match="ends before"):
        file.read(SEGMENT, [aligned(bytes(4 * ALIGNMENT))])
    file.close()


def test_without_direct_io_it_works_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slab uses the page cache and logs a line if a file system refuses O_DIRECT."""
    # Not every machine has such a file system, so the call itself refuses here.
    real: Callable[..., int] = os.open

    def refusing(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT and not flags & os.O_DIRECTORY:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    with own_logs() as logs:
        file = opened(tmp_path / "slab")
    assert [each["event"] for each in logs] == ["slab_without_direct_io"]
    file.write(ALIGNMENT, [memoryview(b"y" * 100)])
    file.close()
    assert (tmp_path / "slab").read_bytes()[ALIGNMENT:].startswith(b"y" * 100)
