"""A memory limit for processes of a test, as a container or a unit has one."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

from kvstore_client.testing import wait_until


class Hierarchy(NamedTuple):
    """A place where cgroups with a memory limit can be made, and the names of their files."""

    path: Path
    limit: str
    usage: str


HIERARCHIES = (
    Hierarchy(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    Hierarchy(Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
)


class MemoryCgroup:
    """A cgroup with a memory limit; as a context manager it is removed at the end.

    Its processes MUST have ended by then. Raises ``OSError`` if this machine or user has none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._hierarchy, self._path = _made()

    @property
    def members(self) -> Path:
        """The file to which a process writes its pid to become a member."""
        return self._path / "cgroup.procs"

    @property
    def used_bytes(self) -> int:
        """The bytes that are charged to it."""
        return int((self._path / self._hierarchy.usage).read_text(encoding="ascii"))

    def __enter__(self) -> Self:
        """Sets the limit."""
        (self._path / self._hierarchy.limit).write_text(str(self._limit_bytes), encoding="ascii")
        return self

    def __exit__(self, *_: object) -> None:
        """Removes it."""
        assert wait_until(self._removed)

    def _removed(self) -> bool:
        with suppress(OSError):
            self._path.rmdir()
        return not self._path.exists()


def why_not() -> str | None:
    """Returns why this machine has no such limits for tests; None if it has."""
    try:
        with MemoryCgroup(1 << 30):
            return None
    except OSError as error:
        return f"needs a cgroup with a memory limit: {error}"


def _made() -> tuple[Hierarchy, Path]:
    for hierarchy in HIERARCHIES:
        path = hierarchy.path / f"kvstore-test-{uuid4().hex}"
        with suppress(OSError):
            path.mkdir()
            if (path / hierarchy.limit).exists():
                return hierarchy, path
            path.rmdir()
    raise OSError("none can be made below /sys/fs/cgroup")
