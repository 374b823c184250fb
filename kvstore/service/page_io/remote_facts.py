"""Facts about a remote tier for its operators: its engine's address, its key, and what it lacks."""

from collections.abc import Callable, Sequence
from threading import Lock

import structlog

from kvstore.remote.finding import EngineFinding

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class RemoteFacts:
    """The facts about one remote tier. Thread-safe.

    ``key_id`` is a short digest of the secret, equal on all hosts that share. ``writes`` is the
    policy of writes. ``find`` asks the engine for its settings: it may wait. An error of it counts
    as no answer.
    """

    def __init__(
        self,
        address: str,
        *,
        key_id: bytes,
        writes: str,
        find: Callable[[], Sequence[EngineFinding] | None] = lambda: None,
    ) -> None:
        self.address = address
        self.key_id = key_id
        self.writes = writes
        self._find = find
        self._findings: tuple[EngineFinding, ...] = ()
        self._mutex = Lock()

    @property
    def findings(self) -> tuple[EngineFinding, ...]:
        """The findings of the engine's last answer."""
        with self._mutex:
            return self._findings

    def ask_engine(self) -> None:
        """Asks the engine for its settings. One that does not answer leaves the findings.

        For a thread of its own.
        """
        found = None
        try:
            found = self._find()
        except Exception:
            # An engine's library may raise anything, and this thread asks again later.
            log.exception("remote_findings_failed")
        if found is not None:
            with self._mutex:
                self._findings = tuple(found)
