"""The runtime folder of a store: its sockets and its file locks."""

import os
import stat
from pathlib import Path

# The bytes of sockaddr_un.sun_path, without its closing zero byte.
MAX_SOCKET_PATH_BYTES = 107
MODE = 0o700
GROUP_MODE = 0o750
# The permission bits. A folder below one with setgid, such as a volume's, has that bit too.
PERMISSIONS = 0o777
UNCHANGED = -1


class UnusableRuntimeDir(Exception):
    """The folder cannot be made, is open to others, or has another file in a socket's place."""


class RuntimeDir:
    """A store's folder by its absolute path. It need not exist yet.

    Only its owner has access, and with ``group_id`` also that group's members, who may read it.
    Raises :class:`UnusableRuntimeDir` if the path is too long for its sockets.
    """

    def __init__(self, path: Path, group_id: int | None = None) -> None:
        self._group_id = group_id
        self.path = path.absolute()
        self.grpc_socket = self.path / "kvstore.sock"
        self.attach_socket = self.path / "attach.sock"
        self.flock_file = self.path / "kvstore.flock"
        self.replacement_file = self.path / "replacement.flock"
        length = len(os.fsencode(self.grpc_socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise UnusableRuntimeDir(
                f"{self.grpc_socket} has {length} bytes; a socket's path has at most"
                f" {MAX_SOCKET_PATH_BYTES}: choose a shorter --runtime-dir"
            )

    def prepare(self) -> None:
        """Makes the folder with mode 0700, unless it exists and only its owner has access.

        With a group it then gives the folder that group and mode 0750. Raises
        :class:`UnusableRuntimeDir` if the folder cannot be made or given to the group, or if
        other users have access.
        """
        try:
            self.path.mkdir(mode=MODE, parents=True, exist_ok=True)
            status = self.path.lstat()
        except OSError as error:
            raise UnusableRuntimeDir(f"{self.path} cannot be made: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise UnusableRuntimeDir(f"{self.path} is a link")
        if status.st_uid != os.geteuid():
            raise UnusableRuntimeDir(f"{self.path} belongs to uid {status.st_uid}")
        mode = status.st_mode & PERMISSIONS
        allowed = MODE if status.st_gid != self._group_id else GROUP_MODE
        if mode & ~allowed:
            raise UnusableRuntimeDir(
                f"{self.path} has mode {mode:04o}, open to others: chmod 700 it"
            )
        if self._group_id is not None:
            self._open_to_group(self._group_id)

    def _open_to_group(self, group_id: int) -> None:
        try:
            os.chown(self.path, UNCHANGED, group_id)
            self.path.chmod(GROUP_MODE)
        except OSError as error:
            raise UnusableRuntimeDir(
                f"{self.path} cannot be given to group {group_id}: {error.strerror}; "
                "the server's user has to be in --socket-group"
            ) from error

    def remove_sockets(self) -> None:
        """Removes the sockets that a dead server left. Call it only under the file lock.

        Raises :class:`UnusableRuntimeDir` if another file is in a socket's place, and leaves it.
        """
        for path in (self.grpc_socket, self.attach_socket):
            try:
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise UnusableRuntimeDir(f"{path} is in the way: it is not a socket")
                path.unlink()
            except FileNotFoundError:
                continue
