"""A pipe or a device is told from a file, without a wait for what it may have to say."""

import os
from pathlib import Path

import pytest

from kvstore.files import NoRegularFile, UntrustedFile, read_private, read_regular
from kvstore.rpc.tls import Tls, TlsFiles, UnusableTls


@pytest.fixture(params=["pipe", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Provides a named pipe that nobody writes, or a device that has no end."""
    if request.param == "device":
        return Path("/dev/zero")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    return pipe


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """Its content and what it was come together; a link is followed."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    found = read_regular(link)
    assert found.content == b"content"
    assert found.status.st_ino == file.stat().st_ino


def test_what_is_no_file_is_refused(odd: Path) -> None:
    """By its path, and at once."""
    with pytest.raises(NoRegularFile, match=f"^{odd} is no regular file$"):
        read_regular(odd)


def test_nobody_is_let_in_by_a_pipe(odd: Path) -> None:
    """Neither as the tenants' file, nor as a private key."""
    with pytest.raises(UntrustedFile, match=f"^{odd} is no regular file$"):
        read_private(odd, secret=False)


def test_a_certificate_is_a_file(odd: Path, tmp_path: Path) -> None:
    """A server that is to serve with another kind of certificate says so as it starts."""
    key = tmp_path / "key"
    key.write_bytes(b"a key")
    with pytest.raises(UnusableTls, match=f"^TLS: {odd} is no regular file$"):
        Tls(TlsFiles(odd, key), Path.read_bytes)
