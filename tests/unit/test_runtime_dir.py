"""The runtime folder of a store."""

import os
import socket
import stat
from pathlib import Path

import pytest

from kvstore.runtime_dir import RuntimeDir, UnusableRuntimeDir


def leave_socket(path: Path) -> None:
    """Leaves a socket at a path, as a killed server does."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """The folder is made with mode 0700, with its parents, and may exist already."""
    runtime_dir = RuntimeDir(tmp_path / "a" / "b")
    for _ in range(2):
        runtime_dir.prepare()
    assert stat.S_IMODE(runtime_dir.path.stat().st_mode) == 0o700


def test_a_folder_below_one_with_setgid_is_taken(tmp_path: Path) -> None:
    """A folder that inherits the setgid bit is accepted, because the bit gives no access."""
    tmp_path.chmod(0o2777)
    runtime_dir = RuntimeDir(tmp_path / "store")
    for _ in range(2):
        runtime_dir.prepare()
    assert stat.S_IMODE(runtime_dir.path.stat().st_mode) == 0o2700


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """A folder that others may enter is refused with the chmod that helps."""
    tmp_path.chmod(mode)
    with pytest.raises(UnusableRuntimeDir, match="chmod 700"):
        RuntimeDir(tmp_path).prepare()


def test_a_folder_for_a_group_is_open_to_it(tmp_path: Path) -> None:
    """With a socket group the folder has mode 0750 and that group, whether new or existing."""
    group = os.getgid()
    for path in (tmp_path / "new", tmp_path / "new", tmp_path):
        RuntimeDir(path, group).prepare()
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o750, group)


@pytest.mark.parametrize("mode", [0o770, 0o755])
def test_a_folder_for_a_group_is_open_to_nobody_else(tmp_path: Path, mode: int) -> None:
    """A folder that the group may change, or others may see, is refused."""
    tmp_path.chmod(mode)
    with pytest.raises(UnusableRuntimeDir, match="open to others"):
        RuntimeDir(tmp_path, os.getgid()).prepare()


def test_a_folder_of_another_group_is_not_taken(tmp_path: Path) -> None:
    """A folder that another group may enter is refused."""
    tmp_path.chmod(0o750)
    with pytest.raises(UnusableRuntimeDir, match="open to others"):
        RuntimeDir(tmp_path, os.getgid() + 1).prepare()


def test_a_link_is_refused(tmp_path: Path) -> None:
    """A link in place of the folder is refused, because its owner could move it."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnusableRuntimeDir, match="is a link"):
        RuntimeDir(tmp_path / "link").prepare()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in place of the folder is named in the error."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(UnusableRuntimeDir, match="cannot be made"):
            RuntimeDir(path).prepare()


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    """A path whose sockets could not be bound is refused before anything is made."""
    longest = "/" + "x" * (107 - len("/kvstore.sock") - 1)
    assert RuntimeDir(Path(longest)).path == Path(longest)
    with pytest.raises(UnusableRuntimeDir, match="shorter --runtime-dir"):
        RuntimeDir(Path(longest + "x"))


def test_sockets_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """Sockets that a dead server left are removed, if they exist. Other files stay."""
    runtime_dir = RuntimeDir(tmp_path)
    leave_socket(runtime_dir.grpc_socket)
    leave_socket(runtime_dir.attach_socket)
    runtime_dir.flock_file.touch()
    for _ in range(2):
        runtime_dir.remove_sockets()
    assert list(tmp_path.iterdir()) == [runtime_dir.flock_file]


def test_a_file_in_a_socket_s_place_is_left_alone(tmp_path: Path) -> None:
    """A regular file at a socket's path is named in the error and not removed."""
    runtime_dir = RuntimeDir(tmp_path)
    runtime_dir.attach_socket.write_text("somebody's")
    with pytest.raises(UnusableRuntimeDir, match="not a socket"):
        runtime_dir.remove_sockets()
    assert runtime_dir.attach_socket.read_text() == "somebody's"
