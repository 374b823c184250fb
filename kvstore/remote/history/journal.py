"""The journal: what a host remembers of removals over its restarts, a file a namespace.

A file has the removals that the host knows of, those that it owes the engine, and the time of its
own last one. It is written beside the old one, synced and renamed, so a crash leaves one of both.
A file that cannot be read counts as absent: then the host hears of the namespace's removals again.
"""

import os
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog
from xxhash import xxh3_64_digest

from kvstore.remote.expiry import BUCKET_SECONDS, EngineClock
from kvstore.remote.history.controls import LIVES
from kvstore.remote.secret.names import SHARD_COUNT
from kvstore.remote.secret.revisions import NO_REMOVAL, Revision

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_MAGIC: Final = b"KVRJ\x01"
# Magic, whether a removal is owed, and seconds since 1970 of the own last removal.
_HEAD: Final = struct.Struct("<5s?d")
_SHARD: Final = struct.Struct("<Q8s8s")
_SUM_BYTES: Final = 8
_ENDING: Final = ".revisions"
_FILE_BYTES: Final = _HEAD.size + SHARD_COUNT * _SHARD.size + _SUM_BYTES


@dataclass(frozen=True)
class JournalEntry:
    """A namespace's file: the known revisions by shard, and the own removals."""

    known: Mapping[int, Revision] = field(default_factory=dict)
    is_owed: bool = False
    removed_at: float = 0.0
    """Seconds since 1970 by the engine's clock, 0 without a removal."""


class RemovalJournal:
    """The files of a folder, which is made if it is absent. Thread-safe for different namespaces.

    Own removals are remembered for ``ttl_seconds`` of the engine's clock: by then it has no page of
    before. A file without a change for ``LIVES`` times as long, and without an own removal, is
    deleted at the next start. This host's clock decides that, since it only hears again of what
    others removed.
    """

    def __init__(self, folder: Path, clock: EngineClock, *, ttl_seconds: float) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._delete_old()

    def load(self, namespace: bytes) -> JournalEntry:
        """Returns what is known of a namespace, without an own removal that is over."""
        entry = self._read(self._path(namespace)) or JournalEntry()
        return replace(entry, removed_at=0.0) if self.is_over(entry.removed_at) else entry

    def all(self) -> Iterator[tuple[bytes, JournalEntry]]:
        """Yields each namespace that has a file, with removals that are over too."""
        for path in sorted(self._folder.glob("*" + _ENDING)):
            entry = self._read(path)
            if entry is not None:
                yield bytes.fromhex(path.name.removesuffix(_ENDING)), entry

    def save(self, namespace: bytes, entry: JournalEntry) -> bool:
        """Writes what is known of a namespace; returns once it is on the disk.

        Returns False, and raises the alarm, if the disk refuses.
        """
        shards = (entry.known.get(each) for each in range(SHARD_COUNT))
        content = _HEAD.pack(_MAGIC, entry.is_owed, entry.removed_at) + b"".join(
            _SHARD.pack(*(each or Revision(0, NO_REMOVAL, bytes(8)))) for each in shards
        )
        path = self._path(namespace)
        try:
            _replace(path, content + xxh3_64_digest(content))
        except OSError as error:
            log.error(  # noqa: TRY400  # the words of the system say all
                "remote_journal_not_written",
                why=str(error),
                advice="a removal may be forgotten at the next start: free the disk's space",
            )
            return False
        return True

    def _path(self, namespace: bytes) -> Path:
        return self._folder / (namespace.hex() + _ENDING)

    def now(self) -> float:
        """Returns the engine's time, in seconds since 1970. A jump of this host's changes nothing.

        Before the engine has told it, the time is this host's.
        """
        return self._clock.now_ms() / 1000

    def is_over(self, removed_at: float) -> bool:
        """Returns whether the engine has no page from before a removal any more.

        False until the engine has told its time.
        """
        oldest = self.now() - self._ttl_seconds - BUCKET_SECONDS
        return self._clock.is_known and removed_at <= oldest

    def _delete_old(self) -> None:
        oldest = time.time() - LIVES * self._ttl_seconds
        for path in self._folder.glob("*" + _ENDING):
            entry = self._read(path)
            is_needed = entry is not None and (entry.is_owed or entry.removed_at)
            if path.stat().st_mtime < oldest and not is_needed:
                path.unlink(missing_ok=True)

    def _read(self, path: Path) -> JournalEntry | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("remote_journal_not_read", why=str(error))
            return None
        body, checksum = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if len(content) != _FILE_BYTES or xxh3_64_digest(body) != checksum:
            log.warning("remote_journal_not_read", why=f"{path.name} is damaged")
            return None
        magic, is_owed, removed_at = _HEAD.unpack_from(body)
        if magic != _MAGIC:
            log.warning("remote_journal_not_read", why=f"{path.name} is of another version")
            return None
        shards = enumerate(_SHARD.iter_unpack(body[_HEAD.size :]))
        known = {shard: Revision(*each) for shard, each in shards if each[0]}
        return JournalEntry(known, is_owed, removed_at)


def _replace(path: Path, content: bytes) -> None:
    """Replaces a file by a synced one, and syncs its folder."""
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  # a descriptor
        file.write(content)
        os.fsync(descriptor)
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
