"""Network cuts from within a process."""

import socket
from pathlib import Path

from chaos.cuts import cut_connections


def listening(path: Path) -> socket.socket:
    """Returns a socket that listens."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def connected(path: Path) -> socket.socket:
    """Returns a socket that is connected."""
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(str(path))
    return ours


def test_both_ends_of_a_connection_are_cut_and_no_other(tmp_path: Path) -> None:
    """Reading ends on a cut connection. Another connection and the listening socket still work."""
    one, other = tmp_path / "one", tmp_path / "other"
    with listening(one) as first, listening(other) as second:
        with connected(one) as ours, connected(other) as kept:
            theirs, theirs_kept = first.accept()[0], second.accept()[0]
            with theirs, theirs_kept:
                assert cut_connections(one) == 2
                assert ours.recv(1) == b""
                kept.sendall(b"x")
                assert theirs_kept.recv(1) == b"x"
        with connected(one) as again:
            again.sendall(b"y")
            accepted, _ = first.accept()
            with accepted:
                assert accepted.recv(1) == b"y"


def test_without_connections_nothing_is_cut(tmp_path: Path) -> None:
    """A listening socket is not cut."""
    with listening(tmp_path / "one"):
        assert cut_connections(tmp_path / "one") == 0
