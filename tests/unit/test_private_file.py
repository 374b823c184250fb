"""Files that others could have written are refused."""

import os
from pathlib import Path

import pytest

from kvstore.operator_files import UntrustedFile, read_private


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Provides a file."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.mark.parametrize(
    ("mode", "secret"), [(0o600, True), (0o640, True), (0o400, True), (0o644, False)]
)
def test_a_file_of_ours_is_read(file: Path, mode: int, *, secret: bool) -> None:
    """A file is read if only its owner may write it, and others may not read its secret."""
    file.chmod(mode)
    assert read_private(file, secret=secret) == b"content"


@pytest.mark.parametrize(
    ("mode", "secret", "said"),
    [
        (0o644, True, "can read it; chmod 640"),
        (0o660, True, "can change it; chmod 640"),
        (0o666, True, "can change it"),
        (0o646, False, "can change it; chmod 644"),
        (0o664, False, "can change it"),
    ],
)
def test_a_file_that_others_reach_is_refused(
    file: Path, mode: int, *, secret: bool, said: str
) -> None:
    """A file that others may read or change is refused with the chmod that helps."""
    file.chmod(mode)
    with pytest.raises(UntrustedFile, match=said):
        read_private(file, secret=secret)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing file is named with the system's reason."""
    with pytest.raises(UntrustedFile, match="nothing: No such file"):
        read_private(tmp_path / "nothing", secret=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    """A file of another user is refused, because its owner can write it whatever its mode."""
    os.chown(file, 12345, -1)
    with pytest.raises(UntrustedFile, match="belongs to uid 12345"):
        read_private(file, secret=False)
