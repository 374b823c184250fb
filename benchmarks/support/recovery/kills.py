"""Kill -9 of a server in the middle of its writes to tier 3, and its successor's pages."""

import sys
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from kvstore_client import Client, ClientConfig, Namespace
from kvstore_client.testing import RunningStore, wait_until
from support.recovery.load import Load, Told
from support.recovery.prompts import IDENTITY, LAYOUT, bytes_of, tokens_of

TIER1_BYTES = 2048 * LAYOUT.page_bytes
TIER3_BYTES = 256 << 20
# A server is killed once tier 3 has that many more prompts.
ACKNOWLEDGED = 1, 60
# Pages accumulate over that many kills.
KEPT = 5
LIMIT = 60.0
# Seconds in which a successor has to serve its pages, since it first maps memory.
PATIENCE = 5.0
COUNTED = (
    *("acknowledged_pages", "served_pages", "wrong_pages", "removed_prompts", "returned_pages"),
    *("torn_slots", "corrupt_pages"),
)


class Server:
    """A store with its slab in ``folder``, and its sockets elsewhere, where paths are short."""

    def __init__(self, folder: Path, runtime_dir: Path) -> None:
        self.slab = folder / "slab"
        self.store = RunningStore(
            runtime_dir,
            (
                *("--tier1-bytes", str(TIER1_BYTES), "--extent-bytes", str(TIER1_BYTES)),
                *("--tier3-path", str(self.slab), "--tier3-bytes", str(TIER3_BYTES)),
                *("--tier3-write", "through", "--drain-grace", "0"),
            ),
        )

    def client(self) -> tuple[Client, Namespace]:
        """Returns a client with its namespace open."""
        client = Client(self.store.runtime_dir, ClientConfig(call_timeout=LIMIT, close_timeout=1.0))
        client.start()
        namespace = client.namespace(IDENTITY, LAYOUT)
        if not namespace.wait_open(LIMIT):
            raise RuntimeError(f"{namespace.failure}\n{self.store.log}")
        return client, namespace


def run_kills(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills a server many times, checks after each, and returns the sums."""
    with TemporaryDirectory(prefix="kv-recovery-") as runtime_dir:
        return _run_kills(Server(folder, Path(runtime_dir)), kills, seed)


def _run_kills(server: Server, kills: int, seed: int) -> dict[str, Any]:
    rng, total, told, numbers = Random(seed), Counter[str](), Told(), count()
    try:
        for kill in range(kills):
            server.store.start()
            _write_until_killed(server, told, numbers, rng)
            server.store.start()
            total += _look(server, told)
            server.store.kill()
            sys.stderr.write(f"kill {kill + 1}: {dict(total)}\n")
            if kill % KEPT == KEPT - 1:
                server.slab.unlink()
                told = Told()
    finally:
        server.store.stop()
    fraction = total["served_pages"] / max(total["acknowledged_pages"], 1)
    return {
        "kills": kills,
        **{name: total[name] for name in COUNTED},
        "served_fraction": round(fraction, 6),
    }


def _write_until_killed(server: Server, told: Told, numbers: "count[int]", rng: Random) -> None:
    enough = len(told.acknowledged) + rng.randint(*ACKNOWLEDGED)
    client, namespace = server.client()
    load = Load(client, namespace, told, numbers, rng)
    try:
        if not wait_until(lambda: len(told.acknowledged) >= enough, LIMIT):
            raise RuntimeError(f"tier 3 takes no pages\n{server.store.log}")
    finally:
        server.store.kill()
        load.end()
        client.close()


def _look(server: Server, told: Told) -> Counter[str]:
    """Matches every prompt with pages in tier 3, and compares the served pages."""
    found: Counter[str] = Counter()
    client, namespace = server.client()
    for number, pages in told.acknowledged.items():
        if number in told.leaving:
            continue
        tokens = tokens_of(number)
        served = _served(namespace, tokens, pages, found)
        found["acknowledged_pages"] += pages
        found["served_pages"] += min(served, pages)
    for number in told.removed:
        there, wrong = _match(namespace, tokens_of(number))
        found["wrong_pages"] += wrong
        found["returned_pages"] += max(there - 1, 0)
    found["removed_prompts"] = len(told.removed)
    tier_3 = client.admin.stats().tier_3
    found["torn_slots"], found["corrupt_pages"] = tier_3.torn_slot_count, tier_3.corrupt_page_count
    client.close()
    return found


def _served(namespace: Namespace, tokens: list[int], pages: int, found: Counter[str]) -> int:
    """Returns how many pages of a prompt are served, with some retries."""
    most = 0

    def enough() -> bool:
        nonlocal most
        count, wrong = _match(namespace, tokens)
        found["wrong_pages"] += wrong
        most = max(most, count)
        return most >= pages

    wait_until(enough, PATIENCE)
    return most


def _match(namespace: Namespace, tokens: list[int]) -> tuple[int, int]:
    """Returns how many pages of a prompt are served, and how many of them are wrong."""
    with namespace.match(tokens) as match:
        wrong = [
            page
            for page, ref in enumerate(match.pages)
            if namespace.page(ref) != bytes_of(tokens, page)
        ]
        return match.page_count, len(wrong)
