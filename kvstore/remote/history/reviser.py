"""Removals by other hosts: tells the store of each, and only then accepts its revision."""

from collections.abc import Callable
from threading import Thread
from typing import Final

import structlog

from kvstore.remote.errors import RemoteError
from kvstore.remote.history.controls import Controls
from kvstore.remote.history.due_queue import DueQueue
from kvstore.remote.history.remote_namespaces import RemoteNamespaces
from kvstore.remote.history.removals import ALL_SHARDS
from kvstore.remote.secret.revisions import Age
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

CLOSE_SECONDS: Final = 5.0


class Reviser:
    """A thread that tells a listener of namespaces of which other hosts removed pages.

    It reads all revisions of a namespace before the call. The host has heard of these afterwards,
    and of no later one. All of them are read within ``seconds``. Without a listener the host hears
    of nothing, so that a store which starts misses no removal.
    """

    def __init__(
        self,
        namespaces: RemoteNamespaces,
        controls: Controls,
        clock: Clock,
        *,
        seconds: float,
    ) -> None:
        self._revised: Callable[[bytes], None] | None = None
        self._namespaces = namespaces
        self._controls = controls
        self._clock = clock
        self._seconds = seconds
        self._due = DueQueue(clock)
        self._thread = Thread(target=self._run, name="kv-remote-reviser", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def listen(self, revised: Callable[[bytes], None]) -> None:
        """Calls ``revised`` from now on, also for the namespaces that were added before."""
        self._revised = revised
        with self._namespaces.mutex:
            unheard = [each.digest for each in self._namespaces.hidden() if each.is_unheard]
        for each in unheard:
            self._due.add(each)

    def add(self, digest: bytes) -> None:
        """Adds a namespace, which is hidden until the listener has returned."""
        self._due.add(digest)

    def wake(self) -> None:
        """Tries again at once what failed."""
        self._due.wake()

    def close(self) -> None:
        """Ends the thread, after a call of the listener under way."""
        self._due.close()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (digest := self._due.take()) is not None:
            succeeded = False
            try:
                self._revise(digest)
                succeeded = True
            except RemoteError as error:
                log.info("remote_revision_waits", why=f"{type(error).__name__}: {error}")
            except Exception:
                log.exception("remote_revised_callback_failed")
            self._due.finish(digest, succeeded=succeeded)

    def _revise(self, digest: bytes) -> None:
        revised = self._revised
        with self._namespaces.record(digest) as record:
            if revised is None or not record.is_unheard:
                return
            unheard = record.unheard
        seen = self._controls.read(digest, ALL_SHARDS, self._clock() + self._seconds)
        revised(digest)
        with self._namespaces.mutex:
            heard = {
                shard: control.revision
                for shard, control in seen.items()
                if control.revision
                and control.revision.age(record.known.get(shard)) is not Age.EARLIER
            }
            self._namespaces.accept(record, heard)
        self._namespaces.save(record)
        with self._namespaces.mutex:
            record.heard = unheard
