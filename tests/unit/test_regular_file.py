"""Reading regular files only: a pipe or a device is refused without waiting."""

import os
from pathlib import Path

import pytest

from kvstore.operator_files import NoRegularFile, UntrustedFile, read_private, read_regular
from kvstore.rpc.tls import Tls, TlsFiles, UnusableTls


@pytest.fixture(params=["pipe", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Provides a named pipe without a writer, or an endless device."""
    if request.param == "device":
        return Path("/dev/zero")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    return pipe


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """A file's content and status are read together, also through a link."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    found = read_regular(link)
    assert found.content == b"content"
    assert found.status.st_ino == file.stat().st_ino


def test_what_is_no_file_is_refused(odd: Path) -> None:
    """A pipe or device is refused at once with its path."""
    with pytest.raises(NoRegularFile, match=f"^{odd} is no regular file$"):
        read_regular(odd)


def test_nobody_is_let_in_by_a_pipe(odd: Path) -> None:
    """A pipe or device is refused as a private file."""
    with pytest.raises(UntrustedFile, match=f"^{odd} is no regular file$"):
        read_private(odd, secret=False)


def test_a_certificate_is_a_file(odd: Path, tmp_path: Path) -> None:
    """A pipe or device is refused as a TLS certificate at the start."""
    key = tmp_path / "key"
    key.write_bytes(b"a key")
    with pytest.raises(UnusableTls, match=f"^TLS: {odd} is no regular file$"):
        Tls(TlsFiles(odd, key), Path.read_bytes)
