"""A worker that removes prompts on one host, and sees that they return on none."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Event
from typing import NamedTuple

from chaos.control import Control, Phase
from chaos.load import PAGE_TOKENS, Load
from chaos.pages import Pages
from chaos.report import Report
from chaos.worker import LAYOUT, LOOK, SLOW_PREFILL, Orders, config_of
from kvstore_client import Admin, Client, Namespace, NamespaceIdentity, connect_admin
from kvstore_client.errors import StoreError
from support.page_stamps import TOKEN_BYTES, Stamp, page_keys, stamped

# As many as a store reads from the engine at once.
PAGES = 16
PAGE_BYTES = PAGE_TOKENS * TOKEN_BYTES
PROMPT_BYTES = PAGES * PAGE_BYTES
# Seconds for a page to reach the other host, and for the other host to learn of a removal.
ARRIVAL, NEWS = 7.0, 30.0
# A store does not ask again within two seconds for a page that the engine did not have.
ASK_AGAIN = 2.2
# Between two looks for a prompt that was removed.
LOOK_AGAIN = 0.3
# Until the engine has a page, if all goes well.
ON_ITS_WAY = 0.5
# Seconds of an operator's call: longer than a store waits for the engine to confirm a removal.
ADMIN = 10.0
# Between two removals.
PAUSE = 0.3
# Removed prompts that are looked up again in each turn.
AGAIN = 3


class Removed(NamedTuple):
    """A removed prompt: its tokens, and whether the other host learned of it."""

    tokens: bytes
    known_there: bool


class Remover:
    """Inserts a prompt here, finds it there, removes it here, and looks for it ever after.

    Nobody else uses its namespace, so a page found after the removal returned. One thread uses it.
    """

    def __init__(self, orders: Orders, here: Namespace, there: Namespace, report: Report) -> None:
        self._here = here
        self._there = there
        self._report = report
        self._name = orders.name
        self._pages = {each: Pages(each, orders.name, report) for each in (here, there)}
        self._chosen = random.Random(orders.seed)
        self._pause = Event()
        self._number = 0
        self._removed: list[Removed] = []
        # Removed here, while the engine had not acknowledged it.
        self._owed: list[bytes] = []

    def turn(self, admin: Admin) -> None:
        """Removes one prompt. Raises ``StoreError`` where a store does not answer."""
        self._settle(admin)
        self._look_again()
        tokens = self._prompt()
        if not self._insert(tokens) or not self._arrives(tokens):
            self._report.counts["removals_without_arrival"] += 1
            return
        # The first page, and with it all that continue it.
        answer = admin.evict_prefix(self._here.namespace_id, tokens[:PAGE_BYTES])
        if answer.evicted_page_count + answer.detached_page_count < PAGES:
            # Another server runs by now, which does not have the prompt and removed nothing.
            self._report.counts["removals_of_nothing"] += 1
            return
        self._report.counts["removals"] += 1
        self._report.counts[f"removals_{self._name.rpartition('@')[2]}"] += 1
        self._check(self._here, tokens, "here")
        self._owed.append(tokens)
        self._settle(admin)

    def finish(self, admin: Admin) -> None:
        """Looks for all removed prompts, once all faults are over."""
        self._within(NEWS, LOOK_AGAIN, lambda: not admin.stats().remote.pending_removal_count)
        self._settle(admin)
        if self._owed:
            self._report.finding("returned_pages", f"{len(self._owed)} removals are pending")
        for each in self._removed:
            self._check(self._here, each.tokens, "here, at the end")
            if each.known_there:
                self._check(self._there, each.tokens, "there, at the end")

    def _settle(self, admin: Admin) -> None:
        """Checks on the other host what the engine has acknowledged since."""
        if not self._owed or admin.stats().remote.pending_removal_count:
            return
        owed, self._owed = self._owed, []
        for tokens in owed:
            known = self._learns(tokens)
            self._report.counts["removals_seen_there"] += known
            self._removed.append(Removed(tokens, known))

    def _look_again(self) -> None:
        for each in self._chosen.sample(self._removed, min(AGAIN, len(self._removed))):
            self._check(self._here, each.tokens, "here, again")
            if each.known_there:
                self._check(self._there, each.tokens, "there, again")

    def _insert(self, tokens: bytes) -> bool:
        """Writes a prompt's pages here. Returns whether the store has all of them."""
        keys = list(page_keys(tokens, PAGE_TOKENS))
        with self._here.reserve(start_page=0, page_count=len(keys)) as reservation:
            for key, page in zip(keys, reservation.pages, strict=True):
                self._number += 1
                view = self._here.page(page)
                view[:] = stamped(key, Stamp(self._name, self._number), len(view))
            inserted = reservation.insert(tokens, position=0)
            return bool(inserted.published_page_count == len(keys))

    def _arrives(self, tokens: bytes) -> bool:
        """Returns whether the other host finds the prompt, which it gets from the engine alone."""
        self._pause.wait(ON_ITS_WAY)
        return self._within(ARRIVAL, ASK_AGAIN, lambda: self._found(self._there, tokens) > 0)

    def _learns(self, tokens: bytes) -> bool:
        """Returns whether the other host stops to find a removed prompt.

        It learns of removals by looks, so it is asked for prompts that nobody has.
        """

        def gone() -> bool:
            self._found(self._there, self._prompt())
            return self._found(self._there, tokens) == 0

        return self._within(NEWS, LOOK_AGAIN, gone)

    def _check(self, namespace: Namespace, tokens: bytes, where: str) -> None:
        self._report.counts["removals_checked"] += 1
        if found := self._found(namespace, tokens):
            self._report.finding("returned_pages", f"{found} removed pages {where}")

    def _found(self, namespace: Namespace, tokens: bytes) -> int:
        """Returns the pages of a prompt that a host finds, after checking their bytes."""
        # One more token, so that the last page may be matched.
        longer = tokens + bytes(TOKEN_BYTES)
        with namespace.match(longer) as match:
            if match.failure is not None:
                raise match.failure
            keys = list(page_keys(longer, PAGE_TOKENS))
            self._pages[namespace].check_match(longer, keys, match)
            return match.page_count

    def _within(self, seconds: float, pause: float, condition: Callable[[], bool]) -> bool:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            self._pause.wait(pause)
        return True

    def _prompt(self) -> bytes:
        return self._chosen.randbytes(PROMPT_BYTES)


def remove(load: Load, orders: Orders, control: Control, report: Report) -> None:
    """Removes prompts on one host until the faults end, and looks for them at the end."""
    del load
    identity = NamespaceIdentity(orders.name.encode(), display_name="removed")
    pause = Event()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(each, config_of(orders)))
            for each in (orders.runtime_dir, orders.other_dir)
        ]
        here, there = (each.namespace(identity, LAYOUT) for each in clients)
        here.prefill_tokens_per_second = there.prefill_tokens_per_second = SLOW_PREFILL
        remover = Remover(orders, here, there, report)
        while control.phase < Phase.CALM:
            if here.wait_open(LOOK) and there.wait_open(LOOK):
                with (
                    suppress(StoreError),
                    connect_admin(orders.runtime_dir, timeout=ADMIN) as admin,
                ):
                    remover.turn(admin)
            report.send()
            pause.wait(PAUSE)
        while control.phase < Phase.END:
            pause.wait(LOOK)
        here.wait_open(NEWS)
        there.wait_open(NEWS)
        with connect_admin(orders.runtime_dir, timeout=ADMIN) as admin:
            remover.finish(admin)
        report.send()
