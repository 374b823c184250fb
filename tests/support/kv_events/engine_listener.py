"""A router that listens to one engine's own KV events."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine_cases.store import Store
from kv_events.consumer import Consumer
from kvstore_client.admin import connect_admin

TOKEN_BYTES = 4
# The longest wait for events, in tries of so many milliseconds.
TRIES, TRY_MS = 80, 250
# A match leaves a sequence's last token out.
ANY_TOKEN = 0


class EngineListener:
    """Follows the events of an engine that starts with ``config``. One thread uses it.

    ``config`` is the value of ``--kv-events-config``, which vLLM and SGLang have alike.
    """

    def __init__(self, folder: Path, name: str, page_tokens: int) -> None:
        events, replay = (f"ipc://{folder}/{name}-{kind}" for kind in ("pub", "replay"))
        self.config: dict[str, Any] = {
            "publisher": "zmq",
            "endpoint": events,
            "replay_endpoint": replay,
        }
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._consumer = Consumer(events, replay)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def pages(self, medium: str, tokens: Sequence[int]) -> int:
        """Returns how many pages from the beginning of ``tokens`` the engine has in a medium."""
        packed = _packed(tokens)
        known = self._consumer.prefixes(medium)
        count = 0
        while packed[: (count + 1) * self._page_bytes] in known and self._has_page(packed, count):
            count += 1
        return count

    def wait(self, holds: Callable[[], bool], nudge: Callable[[], object] = lambda: None) -> bool:
        """Follows events until ``holds()``; returns whether it does. ``nudge`` is called between.

        It waits a generous time.
        """
        for _ in range(TRIES):
            while self._consumer.receive():
                pass
            if holds():
                return True
            nudge()
            self._consumer.receive(TRY_MS)
        return False

    def unknown_to(self, store: Store, medium: str) -> list[int]:
        """Returns the lengths in tokens of the paths in a medium that a store does not have."""
        with connect_admin(store.runtime_dir) as admin:
            spaces = [each.namespace_id for each in admin.namespaces()]

            def has(path: bytes) -> bool:
                asked = path + _packed([ANY_TOKEN])
                found = (admin.peek_prefix(each, asked).matched_token_count for each in spaces)
                return max(found, default=0) * TOKEN_BYTES >= len(path)

            paths = self._consumer.prefixes(medium)
            return [len(each) // TOKEN_BYTES for each in paths if not has(each)]

    def _has_page(self, packed: bytes, number: int) -> bool:
        """Returns whether a sequence has a whole page of that number."""
        return len(packed) >= (number + 1) * self._page_bytes


def _packed(tokens: Sequence[int]) -> bytes:
    return b"".join(each.to_bytes(TOKEN_BYTES, "little") for each in tokens)
