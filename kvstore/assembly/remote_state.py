"""The folder in which a host keeps what it knows of the remote tier over restarts."""

import fcntl
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from kvstore.config.settings import Config
from kvstore.operator_files import UntrustedFile, read_private

KEY_BYTES: Final = 32
# Seconds that a server waits for the one before it to leave the folder.
FOLDER_PATIENCE: Final = 5.0
FOLDER_LOOK: Final = 0.05
# Names of uids without a tenant in the tenants file.
UID_PREFIX: Final = "uid-"


class UnusableStateFolder(Exception):
    """The folder of removals cannot be made, is open to others, or another server has it."""


def open_state_folder(path: Path, stack: ExitStack, patience: float = FOLDER_PATIENCE) -> Path:
    """Makes the folder of removals, and takes it for this process until ``stack`` ends.

    Waits ``patience`` seconds for a server before this one to leave it. Raises
    :class:`UnusableStateFolder`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        _require_private(path, status)
        lock = os.open(path / "kvstore.flock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnusableStateFolder(
            f"remote_state_dir {path}: {error.strerror}; set --remote-state-dir to a folder that "
            "outlives restarts"
        ) from error
    stack.callback(os.close, lock)
    until = monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= until:
                raise UnusableStateFolder(
                    f"remote_state_dir {path}: another server has it: give each server its own"
                ) from None
            sleep(FOLDER_LOOK)
        else:
            return path


def tenant_keys(
    config: Config, named: Mapping[str, bytes], state_folder: Path
) -> Callable[[str], bytes]:
    """Returns the function that gives each tenant's key, by its name.

    ``named`` are keys of the tenants file. A uid that no tenant names has the key of this host
    alone: it shares no page with the same number elsewhere, unless the settings trust uids.
    """
    host_key = b"" if config.remote_trust_uids else _host_key(state_folder)

    def key_of(tenant: str) -> bytes:
        known = named.get(tenant)
        if known is not None:
            return known
        return host_key if tenant.startswith(UID_PREFIX) else b""

    return key_of


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UnusableStateFolder(f"remote_state_dir {path} is a link, or belongs to another user")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise UnusableStateFolder(
            f"remote_state_dir {path} has mode {mode:04o}, open to others: chmod 700 it"
        )


def _host_key(folder: Path) -> bytes:
    """Returns this host's key, made at the first start. Raises :class:`UnusableStateFolder`."""
    path = folder / "host.key"
    try:
        if path.exists():
            return _whole_key(path)
        fresh, made = path.with_suffix(".new"), os.urandom(KEY_BYTES)
        fresh.touch(mode=0o600)
        with fresh.open("wb") as file:
            file.write(made)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError as error:
        raise UnusableStateFolder(f"{path}: {error.strerror}") from error
    return made


def _whole_key(path: Path) -> bytes:
    try:
        key = read_private(path, secret=True)
    except UntrustedFile as error:
        raise UnusableStateFolder(str(error)) from error
    if len(key) != KEY_BYTES:
        raise UnusableStateFolder(f"{path} has {len(key)} bytes, not {KEY_BYTES}: remove it")
    return key
