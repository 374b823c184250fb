"""The runtime folder of a store, which has its sockets."""

import os
import socket
from contextlib import suppress
from pathlib import Path

# The bytes of sockaddr_un.sun_path, without its closing zero byte.
LONGEST_SOCKET_PATH = 107


def default_runtime_dir() -> Path:
    """Returns the default runtime folder of a store.

    This is ``$KVSTORE_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/kvstore``, else
    ``/tmp/kvstore-UID``.
    """
    if chosen := os.environ.get("KVSTORE_RUNTIME_DIR"):
        return Path(chosen)
    if session_dir := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(session_dir) / "kvstore"
    return Path("/tmp") / f"kvstore-{os.geteuid()}"  # noqa: S108  # the server makes it with mode 0700


class RuntimeDir:
    """The folder of one store, by its absolute path; it need not exist.

    Raises ``ValueError`` for a path too long for a unix socket.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(default_runtime_dir() if path is None else path).absolute()
        # The longer of the two names.
        if len(os.fsencode(self.grpc_socket)) > LONGEST_SOCKET_PATH:
            raise ValueError(
                f"{self.grpc_socket} is longer than a socket's {LONGEST_SOCKET_PATH} bytes"
            )

    @property
    def attach_socket(self) -> Path:
        """The attach socket."""
        return self.path / "attach.sock"

    @property
    def grpc_socket(self) -> Path:
        """The socket of gRPC."""
        return self.path / "kvstore.sock"

    @property
    def flock_file(self) -> Path:
        """The file that the server locks, and that has its process id."""
        return self.path / "kvstore.flock"

    @property
    def grpc_target(self) -> str:
        """The socket of gRPC as a gRPC target."""
        return f"unix:{self.grpc_socket}"

    def is_served(self) -> bool:
        """Returns False if no server listens at the attach socket.

        A server that was killed leaves the socket's file, at which nobody listens. Returns True if
        this user may not connect.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(0.0)
            try:
                # The queue of a listener is full, or the kernel does not say if there is one.
                with suppress(BlockingIOError, PermissionError):
                    peer.connect(str(self.attach_socket))
            except OSError:
                return False
        return True
