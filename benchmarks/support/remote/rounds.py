"""The rounds of remote.py: every way in turns, on one server and on the same bytes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from valkey import Valkey

from inference_worker.demo.valkey_server import ValkeyServer
from peers.lmcache_redis_peer import LMCacheRedis
from support import machine
from support.remote.pages import PageMemory
from support.remote.ways import Way

GIGA: Final = 1e9
LOOKS: Final = (128, 6_250)
# The beginning of the names of control values.
CONTROL: Final = b"kvr/"
SMALL_BYTES: Final = 4096
# Repeated looks of one slice, of which the median counts.
LOOK_REPEATS: Final = 5


@dataclass
class Samples:
    """One way's figures, one of each round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)
    server: dict[str, list[float]] = field(default_factory=dict)
    looks: dict[int, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float, processor: float, server: float) -> None:
        """Adds a round's transfer, with the processor seconds of the client and the server."""
        self.seconds.setdefault(what, []).append(seconds)
        self.processor.setdefault(what, []).append(processor)
        self.server.setdefault(what, []).append(server)


class Rounds:
    """All ways over one server. ``source`` has the pages to write."""

    def __init__(
        self,
        server: ValkeyServer,
        ways: Mapping[str, Way],
        peers: Mapping[str, LMCacheRedis],
        source: PageMemory,
    ) -> None:
        self.samples = {name: Samples() for name in (*ways, *peers)}
        self._server = server
        self._ways = ways
        self._peers = peers
        self._source = source
        page_bytes = source.pages[0].nbytes
        self._target = PageMemory(len(source.pages), page_bytes)

    def run(self, rounds: int) -> None:
        """Measures every way once a round, in alternating order. A first round does not count."""
        for number in range(rounds + 1):
            names = list(self.samples)[:: -1 if number % 2 else 1]
            for name in names:
                into = self.samples[name] if number else Samples()
                turn = f"r{number}"
                if name in self._ways:
                    self._own(self._ways[name], turn, into)
                else:
                    self._peer(self._peers[name], turn, into)
                self._empty()

    def look(self, rounds: int) -> None:
        """Measures looks on small pages, which all exist."""
        most = max(LOOKS)
        small = PageMemory(1, SMALL_BYTES)
        for way in self._ways.values():
            way.write("looks", small.pages * most)
        for each in self._peers.values():
            each.fill("looks", most, SMALL_BYTES)
        for number in range(rounds + 1):
            for name in list(self.samples)[:: -1 if number % 2 else 1]:
                for count in LOOKS:
                    seconds = median(self._looked(name, count) for _ in range(LOOK_REPEATS))
                    if number:
                        self.samples[name].looks.setdefault(count, []).append(seconds)

    def _looked(self, name: str, count: int) -> float:
        if name in self._peers:
            return self._peers[name].look("looks", count)
        way = self._ways[name]
        began = time.perf_counter()
        found = way.look("looks", count)
        seconds = time.perf_counter() - began
        assert found == count, (name, found)
        return seconds

    def _own(self, way: Way, turn: str, into: Samples) -> None:
        self._time("write", lambda: way.write(turn, self._source.pages), into)
        self._target.clear()
        self._time("read", lambda: way.read(turn, self._target.pages), into)
        assert self._target.pages == self._source.pages, "other bytes came back"

    def _time(self, what: str, call: Callable[[], None], into: Samples) -> None:
        server = machine.cpu_seconds(self._server.pid)
        processor, began = time.process_time(), time.perf_counter()
        call()
        seconds = time.perf_counter() - began
        spent = machine.cpu_seconds(self._server.pid) - server
        into.add(what, seconds, time.process_time() - processor, spent)

    def _peer(self, peer: LMCacheRedis, turn: str, into: Samples) -> None:
        for what, call in (("write", peer.write), ("read", peer.read)):
            server = machine.cpu_seconds(self._server.pid)
            seconds, processor = call(turn)
            into.add(what, seconds, processor, machine.cpu_seconds(self._server.pid) - server)

    def _empty(self) -> None:
        """Deletes all pages, so that each way writes new values into memory used before.

        Control values stay.
        """
        with Valkey(unix_socket_path=str(self._server.socket)) as client:
            names = [each for each in client.scan_iter(count=1_000) if not each.startswith(CONTROL)]
            if names:
                client.unlink(*names)


def figures(
    samples: Mapping[str, Samples], total_bytes: int, ceilings: Sequence[str]
) -> dict[str, Any]:
    """Returns each way's figures: medians of the rounds, and processor time over all rounds.

    Ratios are medians of the rounds' own, to the faster of the ``ceilings``.
    """
    found: dict[str, Any] = {name: {} for name in samples}
    for what in ("write", "read"):
        fastest = min(ceilings, key=lambda name: median(samples[name].seconds[what]))
        for name, of in samples.items():
            bytes_moved = total_bytes * len(of.seconds[what]) / GIGA
            found[name][what] = {
                "gb_per_s": round(total_bytes / GIGA / median(of.seconds[what]), 3),
                "to_ceiling": ratio(samples[fastest], of, what),
                "ceiling": fastest,
                "client_cpu_s_per_gb": round(sum(of.processor[what]) / bytes_moved, 3),
                "server_cpu_s_per_gb": round(sum(of.server[what]) / bytes_moved, 3),
                "raw_s": [round(each, 5) for each in of.seconds[what]],
            }
    for name, of in samples.items():
        found[name]["look_ms"] = {
            str(count): round(median(times) * 1e3, 3) for count, times in of.looks.items()
        }
    return found


def ratio(ceiling: Samples, of: Samples, what: str) -> float:
    """Returns the median of the rounds' own ratios of speed."""
    pairs = zip(ceiling.seconds[what], of.seconds[what], strict=True)
    return round(median(best / own for best, own in pairs), 3)
