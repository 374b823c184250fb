"""The time that an engine which hangs adds to a request, measured once all other work is over."""

import random
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from chaos.load import PAGE_TOKENS
from chaos.remote.rig import EngineRig
from chaos.tally import Tally
from chaos.worker import LAYOUT, SLOW_PREFILL
from kvstore.v1 import store_pb2
from kvstore_client import Admin, Client, ClientConfig, Namespace, NamespaceIdentity, connect_admin
from kvstore_client.testing import wait_until
from support.page_stamps import TOKEN_BYTES, Stamp, page_keys, stamped

IDENTITY = NamespaceIdentity(b"hang", display_name="hang")
PAGES = 6
PROMPT_BYTES = PAGES * PAGE_TOKENS * TOKEN_BYTES
# The setting that bounds a request's wait for an engine, and what two busy cores may add.
DEADLINE_NAME: Final = "remote_timeout"
DEADLINE_MS, MARGIN_MS = 300.0, 50.0
# Rounds in which the engine hangs, requests of each, and requests beside a good engine.
ROUNDS, REQUESTS, BEFORE = 3, 20, 30
OPEN_SECONDS = 40.0
OPEN = store_pb2.RemoteStats.STATE_OPEN


class HangProbe:
    """A stock client of one store, which times matches. One thread uses it."""

    def __init__(self, runtime_dir: Path, tally: Tally, stack: ExitStack, seed: int) -> None:
        config = ClientConfig(display_name="hang", call_timeout=1.0)
        client = stack.enter_context(Client(runtime_dir, config))
        self._admin: Admin = stack.enter_context(connect_admin(runtime_dir))
        self._namespace: Namespace = client.namespace(IDENTITY, LAYOUT)
        # It asks the engine, however slow that was.
        self._namespace.prefill_tokens_per_second = SLOW_PREFILL
        self._tally = tally
        self._chosen = random.Random(seed)

    def open(self) -> bool:
        """Waits until the store reads from its engine."""
        return self._namespace.wait_open(OPEN_SECONDS) and wait_until(
            lambda: self._admin.stats().remote.state == OPEN, OPEN_SECONDS
        )

    def insert(self) -> bytes:
        """Caches a prompt, and returns its tokens."""
        tokens = self._prompt()
        keys = list(page_keys(tokens, PAGE_TOKENS))
        with self._namespace.reserve(start_page=0, page_count=PAGES) as reservation:
            for number, (key, page) in enumerate(zip(keys, reservation.pages, strict=True)):
                view = self._namespace.page(page)
                view[:] = stamped(key, Stamp("hang", number), len(view))
            reservation.insert(tokens, position=0)
        return tokens

    def fresh_ms(self) -> float:
        """Returns the milliseconds of a match of a prompt that no host has."""
        return self._timed(self._prompt(), 0)

    def cached_ms(self, tokens: bytes) -> float:
        """Returns the milliseconds of a match of a cached prompt."""
        return self._timed(tokens, PAGES)

    def _timed(self, tokens: bytes, pages: int) -> float:
        begun = time.monotonic()
        # One more token, so that the last page may be matched.
        with self._namespace.match(tokens + bytes(TOKEN_BYTES)) as match:
            taken = (time.monotonic() - begun) * 1e3
            if match.failure is not None or match.page_count != pages:
                what = f"{match.page_count} pages of {pages} beside a hung engine: {match.failure}"
                self._tally.wrong("late_requests", what)
        return taken

    def _prompt(self) -> bytes:
        return self._chosen.randbytes(PROMPT_BYTES)


def measure_hang(runtime_dir: Path, rig: EngineRig, tally: Tally, seed: int) -> dict[str, object]:
    """Returns the longest time that a hung engine added to a request, and its deadline.

    Counts ``late_requests``: those that waited longer for the engine, and those of cached prompts
    that missed or failed.
    """
    added, usual = 0.0, 0.0
    with ExitStack() as stack:
        probe = HangProbe(runtime_dir, tally, stack, seed)
        for _ in range(ROUNDS):
            if not probe.open():
                tally.wrong("hung_workers", "the store does not return to its engine")
                break
            cached = probe.insert()
            usual = statistics.median(probe.fresh_ms() for _ in range(BEFORE))
            rig.stop()
            try:
                for _ in range(REQUESTS):
                    added = max(added, probe.fresh_ms() - usual, probe.cached_ms(cached) - usual)
            finally:
                rig.resume()
    if added > DEADLINE_MS + MARGIN_MS:
        tally.wrong("late_requests", f"{added:.0f} ms more beside a hung engine")
    return {
        "hung_added_ms": round(added, 1),
        "hung_usual_ms": round(usual, 2),
        "hung_deadline_ms": DEADLINE_MS,
        "hung_deadline": DEADLINE_NAME,
    }
